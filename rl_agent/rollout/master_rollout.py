"""The master's side of a rollout: what is on the disk already, what is given out, and when it is over.

    earlier files counted ─► what is missing published ─► every chunk complete ─► other ranks' files counted
                          └─ before the order: begun here alone
                               └─ other groups in place of those that are left out, while the rest runs
                                                    phase closed ◄─ manifest ◄─ numbers ◄───────┘

Nothing that a rank claims to have done is believed before its file was read.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl_agent.cluster.member.chunk_queue import ChunkQueue
from rl_agent.cluster.protocol.ledger import ShardExtent
from rl_agent.errors import ConfigError, NothingCompleted, StoreError, deliberate
from rl_agent.monitor import metrics as metrics_file
from rl_agent.paths import rank_of
from rl_agent.rollout import conditions, takeover
from rl_agent.rollout.comparison import Comparison
from rl_agent.rollout.head_start import HeadStartQueue
from rl_agent.rollout.rank_rollout import RankRollout
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.resample import Resampling
from rl_agent.rollout.sample import Assignment, Ledger, Sample
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import ManifestEntry, Part, ReadLosses, read_parts
from rl_agent.rollout.trajectories.shard import ShardHeader, whole_bytes
from rl_agent.types import EpisodeCounts, Status, Trajectory

log = logging.getLogger(__name__)
_LOOK_S = 0.5
"""The time between two looks for recorded groups to replace."""


class MasterRollout:
    """The master's part of one rollout; used once."""

    def __init__(
        self,
        assignment: Assignment,
        sample: Sample,
        ledger: Ledger,
        header: ShardHeader,
        begins_with: dict[str, Any],
        *,
        queue: HeadStartQueue,
        rollout: RankRollout,
        shard: RankShard,
    ) -> None:
        self._assignment = assignment
        self._paths = assignment.config.paths
        self._sample = sample
        self._ledger = ledger
        self._header = header
        self._begins_with = begins_with
        self._queue = queue
        self._rollout = rollout
        self._shard = shard
        self._place = (self._paths, header.split, header.iteration)
        self._resampling = Resampling(
            sample,
            *self._place,
            run_id=header.run_id,
            group_size=assignment.config.rollout.group_size,
            comparison=Comparison(assignment.config.grpo.loss) if assignment.config.is_streaming else None,
            known_files=self._known_files,
        )
        shard.on_recorded = self._resampling.add
        self._earlier: frozenset[str] = frozenset()
        """Files that were counted at the beginning."""
        self._publishing = asyncio.Lock()
        self._own_damaged = 0
        """Lines of this node's file that could not be read; their episodes are run again."""

    async def run(self) -> EpisodeCounts:
        """Run the rollout to its end; returns the counts of the iteration.

        Raises like `run.run_rollout`, and NothingCompleted once all is recorded and nothing has a reward.
        """
        queue, rollout = self._queue, self._rollout
        work = queue.work
        earlier = await asyncio.to_thread(self._take_over, work)
        await self._go_on_with_own(earlier)
        if work is None:
            queue.begin(self._sample.groups(self._ledger.missing()))
        else:
            await self._give_out(work)
        try:
            async with asyncio.TaskGroup() as jobs:
                collecting = jobs.create_task(rollout.collect(queue), name="collect")
                if work is None:
                    work = await queue.ordered()
                    await self._give_out(work)
                publishing = jobs.create_task(self._publish_more(work), name="publish more")
                parts = await self._all_complete(work)
                publishing.cancel()
                others = await self._all_recorded(parts)
                collecting.cancel()  # all that is left of it is the wait for more chunks
        except BaseExceptionGroup as group:
            raise deliberate(group) from None
        await self._shard.close()
        # First the numbers: after a kill in between, the phase ends again instead of losing them.
        submitted = self._ledger.asked
        record = rollout.record() | {f"{self._header.split}/submitted": submitted} | self._resampled()
        metrics_file.append(self._paths.metrics, record)
        entries = {entry.file: entry for entry in (*earlier, *self._own(), *others)}
        takeover.finish(*self._place, list(entries.values()))
        work.close()
        rollout.keep_lengths()
        self._check_completed()
        return EpisodeCounts(submitted, rollout.collector.ended)

    def _check_completed(self) -> None:
        """Name the commonest failures. Raises NothingCompleted if no episode at all ended with a reward."""
        ended, reasons = self._rollout.collector.ended, self._rollout.commonest_failures()
        total, completed = ended.total(), ended[Status.COMPLETED]
        where = f"{self._header.split} iteration {self._header.iteration}"
        why, tracebacks = "; ".join(reasons) or "they were abandoned", self._rollout.tracebacks
        why += "" if tracebacks.is_empty else f"; tracebacks: {tracebacks.path}"
        if total and not completed:
            raise NothingCompleted(f"{where}: none of {total:,} episodes has a reward: {why}")
        if reasons:
            log.warning("%s: %s of %s episodes have no reward: %s", where, total - completed, total, why)

    def _take_over(self, work: ChunkQueue | None) -> list[ManifestEntry]:
        """Count what earlier files hold, once those that do not count are set aside."""
        assignment, header = self._assignment, self._header
        is_published = work is not None and work.is_published
        begun = takeover.begun_by(*self._place, assignment.plan.run_id)
        if is_published:  # other ranks are writing: their files are counted at the end
            begun = {
                shard: entry
                for shard, entry in begun.items()
                if entry.attempt < header.attempt or shard.name == self._queue.shard
            }
        else:
            if assignment.resume and assignment.resume_must_exist and not begun:
                growing = self._paths.checkpoint_shard(header.split, header.iteration)
                raise ConfigError(f"--resume: there is no unfinished rollout to go on with ({growing})")
            begun = begun if assignment.resume else {}
        self._check_conditions(is_begun=bool(begun) or is_published)
        if not is_published:
            takeover.set_aside(*self._place, keep=begun, now=header.created_at)
        # Every token says its version where they change while a rollout runs.
        is_streaming = assignment.config.is_streaming
        takeover.check_same_sample(begun.values(), header, may_differ=is_streaming)
        # A node of an earlier start may not be gone after all and write on: what is there now counts.
        self._earlier = frozenset(shard.name for shard in begun)
        return [self._count(_counted(shard), rank_of(shard)) for shard in begun]

    def _known_files(self) -> frozenset[str]:
        """Return the files whose episodes this process has counted or recorded itself."""
        own = self._shard.shard
        return self._earlier if own is None else self._earlier | {own.name}

    def _check_conditions(self, *, is_begun: bool) -> None:
        """Write down what the iteration begins with, or check that this is what it was begun with."""
        assignment, header = self._assignment, self._header
        place = (self._paths, assignment.plan.run_id, header.split, header.iteration)
        begun = conditions.read(*place) if is_begun else None
        if begun is None:
            conditions.write(*place, self._begins_with)
        elif change := conditions.first_change(begun, self._begins_with):
            raise conditions.refusal(header.iteration, change)

    async def _go_on_with_own(self, earlier: list[ManifestEntry]) -> None:
        """Append to the file that this node began, or that the only node of the run began before."""
        sole = self._paths.shard(self._header.split, self._header.iteration)
        name = self._queue.shard or (sole.name if self._shard.is_sole else None)
        for entry in earlier:
            shard = sole.with_name(entry.file)
            if entry.file == name and not shard.exists():
                earlier.remove(entry)
                await self._shard.resume(shard, episodes=entry.episodes)
                self._own_damaged = entry.damaged
                return

    async def _give_out(self, work: ChunkQueue) -> None:
        """Let all nodes claim what is missing."""
        work.on_lost = self._survey_lost
        await self._publish(work)
        self._queue.open()

    async def _publish(self, work: ChunkQueue) -> None:
        """Give out what is asked for by now, but what is recorded or was given out before."""
        async with self._publishing:
            await asyncio.to_thread(self._resampling.look)
            if work.is_published and self._resampling.asked == self._ledger.asked:
                return
            self._ledger.asked = self._resampling.asked
            missing = (index for index in self._ledger.missing() if index not in self._queue.begun)
            groups, header = self._sample.groups(missing), self._header
            await work.publish(groups, digest=header.sample_digest, weight_version=header.weight_version)

    async def _publish_more(self, work: ChunkQueue) -> None:
        while self._ledger.asked < len(self._sample):
            await asyncio.sleep(_LOOK_S)
            await self._publish(work)

    async def _all_complete(self, work: ChunkQueue) -> Sequence[ShardExtent]:
        """Wait until all that was given out is done, and nothing of it asks for more."""
        while True:
            count = self._ledger.asked
            parts = await work.all_complete()
            await self._queue.finished()
            await self._publish(work)
            if self._ledger.asked == count:
                return parts

    async def _all_recorded(self, parts: Sequence[ShardExtent]) -> list[ManifestEntry]:
        """Return the other ranks' files, once it is sure that every episode is on the disk.

        Raises StoreError if one is not, though the rank that ran it said so.
        """
        entries = await asyncio.to_thread(self._count_others, parts)
        missing = self._ledger.missing()
        if missing:
            first, folder = self._sample.specs[missing[0]].key, self._shard.folder
            raise StoreError(
                f"{folder}: holds no file with {len(missing)} episodes that were run, {first} the first;"
                " --resume runs them again"
            )
        return entries

    def _count_others(self, parts: Sequence[ShardExtent]) -> list[ManifestEntry]:
        """Read the other ranks' files up to where they count, though `_resampling` may have followed them.

        What a growing file showed is not a proof of what is on the disk at the end.
        """
        own = self._shard.shard.name if self._shard.shard is not None else None
        return [
            self._count(_counted(self._shard.folder / part.name, part.cut_bytes), part.rank)
            for part in parts
            if part.name != own and part.cut_bytes != 0
        ]

    def _count(self, part: Part, rank: int) -> ManifestEntry:
        losses = ReadLosses([part])
        episodes = self._rollout.count(self._noted(read_parts([part], TRAJECTORY, losses)))
        return ManifestEntry(
            file=part.shard.name,
            rank=rank,
            bytes=part.size_bytes,
            episodes=episodes,
            damaged=losses.damaged,
        )

    def _noted(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            self._resampling.add(trajectory)
            yield trajectory

    def _resampled(self) -> dict[str, object]:
        """Return what became of the reserve, for the metrics and the log; nothing where there is none."""
        sample, count, left_out = self._sample, self._ledger.asked, self._resampling.left_out
        if not self._resampling.has_reserve:
            return {}
        added = len(sample.groups(range(sample.asked, count)))
        log.info(
            "%d of %d groups teach nothing, %d were sampled in place of others%s",
            left_out,
            len(sample.groups(range(count))),
            added,
            "; trainer.max_num_gen_batches allows no more"
            if added < left_out and count == len(sample)
            else "",
        )
        split = self._header.split
        return {f"{split}/uninformative_groups": left_out, f"{split}/resampled_groups": added}

    def _own(self) -> list[ManifestEntry]:
        shard = self._shard.shard
        if shard is None:
            return []
        return [
            ManifestEntry(
                file=shard.name,
                rank=rank_of(shard),
                bytes=whole_bytes(Part(shard).path),
                episodes=self._shard.episodes,
                damaged=self._own_damaged,
            )
        ]

    def _survey_lost(self, name: str) -> tuple[int, set[int]]:
        shard: Path = self._shard.folder / name
        keys, size_bytes = takeover.read_lost(shard)
        return size_bytes, {self._sample.index(key) for key in keys}


def _counted(shard: Path, cut_bytes: int | None = None) -> Part:
    """Return a file up to where it counts: its cut, or what it holds now."""
    return Part(shard, whole_bytes(Part(shard).path) if cut_bytes is None else cut_bytes)
