"""Runs this rank's episodes of an iteration, without a barrier anywhere.

    chunk ─► place (an environment may live) ─► episode ─► place given back ─► judge ─► durable ─► counted
      │                     │ at most `server_size`                │ at most MAX_FINISHING in this half
      └ claimed when a place is free and nothing claimed waits for one

As one episode leaves its place the next starts, whatever its siblings do; while an environment works, its
episode holds no place at the engine. Nothing is counted before it is on the disk, and what is on the disk
is not kept in memory. Every episode ends in exactly one way:

    submitted = completed + failed + timed_out + abandoned

unless the rollout itself is broken off (cancelled, engine gone, disk full): then what was not recorded is
still to do, and a resume, or another rank, does it.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rl_agent.cluster.member.chunk_queue import ClaimedChunk
from rl_agent.errors import JudgeOutage, deliberate
from rl_agent.judge.verdict import Verdict
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.stop_rule import StopRule
from rl_agent.types import EpisodeKey, EpisodeSpec, Failure, Status, Trajectory

log = logging.getLogger(__name__)

MAX_FINISHING = 1024
"""Episodes that wait for the judge or the disk; more than that and no new one starts."""

Judge = Callable[[Trajectory], Awaitable[Verdict]]
"""Raises JudgeOutage where there is no verdict."""


class ChunkSource(Protocol):
    """Gives chunks, as `cluster.member.chunk_queue.ChunkQueue` does."""

    async def next_chunk(self) -> ClaimedChunk | None: ...
    async def more_or_closed(self) -> bool: ...
    def report(self, chunk_id: int) -> None: ...


class Writer(Protocol):
    """Records episodes, as `rollout.rank_shard.RankShard` does."""

    async def append(self, trajectory: Trajectory) -> Trajectory:
        """Return the episode as recorded."""


@dataclass(frozen=True, slots=True)
class CollectSettings:
    server_size: int
    stop_rule: StopRule
    judge_timeout_s: float


class Collector:
    """Collects what one rank claims; used once. Its counts and `running` may be read at any time."""

    def __init__(
        self,
        settings: CollectSettings,
        *,
        left: Callable[[Sequence[int]], list[EpisodeSpec]],
        start_episode: Callable[[EpisodeSpec], Episode],
        writer: Writer,
        places: asyncio.Semaphore | None = None,
        judge: Judge | None = None,
        on_recorded: Callable[[Trajectory], None] = lambda trajectory: None,
        whole: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Begin with nothing claimed; `places` of environments may be shared with another rollout."""
        self.ended: Counter[Status] = Counter()
        """Recorded episodes, those of before a resume included."""
        self.recorded_here = 0
        """The number of recorded episodes that this collector claimed."""
        self.running: dict[EpisodeKey, Episode] = {}
        self._settings = settings
        self._left = left
        """The number of episodes that are not recorded yet, of some indices."""
        self._start_episode = start_episode
        self._writer = writer
        self._judge = judge
        self._on_recorded = on_recorded
        self._whole = whole
        """Episodes of the iteration while this rank is the only one, else None."""
        self._places = places or asyncio.Semaphore(settings.server_size)
        self._unrecorded = asyncio.Semaphore(settings.server_size + MAX_FINISHING)
        self._waiting: deque[tuple[EpisodeSpec, ClaimedChunk]] = deque()
        """Claimed, and not started yet."""
        self._unrecorded_of: dict[int, int] = {}
        """Episodes of each claimed chunk that are not recorded yet."""
        self._claimed = 0
        self._is_exhausted = False
        self._is_stopping = False
        self._alarm: asyncio.TimerHandle | None = None
        """The timer of the grace period, once that has begun."""

    async def collect(self, source: ChunkSource) -> None:
        """Run what `source` gives, except what is recorded already, until there will be no more.

        Raises RetryLater if the engine is gone, StoreError if the disk takes no more.
        """
        self._check_stop_rule()
        try:
            async with asyncio.TaskGroup() as jobs:
                while True:
                    await self._places.acquire()
                    await self._unrecorded.acquire()
                    if not await self._claim(source):
                        self._unrecorded.release()
                        self._places.release()
                        if not await source.more_or_closed():
                            break
                        continue
                    spec, chunk = self._waiting.popleft()
                    jobs.create_task(self._run(spec, chunk, source), name=str(spec.key))
        except BaseExceptionGroup as group:
            raise deliberate(group) from None
        finally:
            self._give_nothing_up()

    @property
    def done(self) -> int:
        return self.ended.total()

    @property
    def submitted(self) -> int:
        """Return how many episodes are this rank's so far: all while it is the only one."""
        whole = self._whole()
        return self.done - self.recorded_here + self._claimed if whole is None else whole

    async def _claim(self, source: ChunkSource) -> bool:
        """Claim until something waits for a place; False if there is nothing to claim now."""
        while not self._waiting:
            chunk = await source.next_chunk()
            if chunk is None:
                self._is_exhausted = True
                self._check_stop_rule()
                return False
            self._take(chunk, source)
        return True

    def _take(self, chunk: ClaimedChunk, source: ChunkSource) -> None:
        left = self._left(chunk.indices)
        if not left:
            source.report(chunk.id)
            return
        self._unrecorded_of[chunk.id] = len(left)
        self._waiting.extend((spec, chunk) for spec in left)
        self._claimed += len(left)
        self._is_exhausted = False
        self._check_stop_rule()

    async def _run(self, spec: EpisodeSpec, chunk: ClaimedChunk, source: ChunkSource) -> None:
        try:
            trajectory = await self._play(spec)
            if self._judge is not None and trajectory.status is Status.COMPLETED:
                trajectory = await self._judged(self._judge, trajectory)
            trajectory = await self._writer.append(trajectory)
        finally:
            self._unrecorded.release()
        self.recorded_here += 1
        self.ended[trajectory.status] += 1
        self._on_recorded(trajectory)
        self._unrecorded_of[chunk.id] -= 1
        if not self._unrecorded_of[chunk.id]:
            del self._unrecorded_of[chunk.id]
            source.report(chunk.id)
        self._check_stop_rule()

    async def _play(self, spec: EpisodeSpec) -> Trajectory:
        episode = self._start_episode(spec)
        if self._is_stopping:
            episode.abandon()
        self.running[spec.key] = episode
        try:
            return await episode.run()
        finally:
            del self.running[spec.key]
            self._places.release()

    async def _judged(self, judge: Judge, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with the judge's reward, or failed: an outage is not a reward of 0."""
        limit_s = self._settings.judge_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                verdict = await judge(trajectory)
        except JudgeOutage as error:
            failure = Failure("JudgeOutage", str(error))
        except TimeoutError:
            failure = Failure("JudgeOutage", f"no verdict within {limit_s:g} s")
        else:
            return replace(trajectory, reward=verdict.reward, reward_detail=verdict.detail, rewards={})
        return replace(trajectory, status=Status.FAILED, reward=None, failure=failure)

    # --- when the rest is given up ---
    def _check_stop_rule(self) -> None:
        """Begin the grace period, or end it: every rank judges what it claimed, the only one the iteration.

        The grace period starts once. Where there is more to run after all, nothing is given up any more.
        """
        counts = [(self.recorded_here, self._claimed)] if self._is_exhausted else []
        whole = self._whole()
        if whole is not None:
            counts.append((self.done, whole))
        rule = self._settings.stop_rule
        due = [(done, total) for done, total in counts if rule.is_due(done=done, total=total)]
        if not due:
            self._give_nothing_up()
        elif self._alarm is None and any(done < total for done, total in due):
            self._alarm = asyncio.get_running_loop().call_later(rule.grace_period_s, self._abandon_rest)
            late = max(total - done for done, total in due)
            log.info("stragglers are cut off in %g s: %d episodes have not ended", rule.grace_period_s, late)

    def _give_nothing_up(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        self._is_stopping = False

    def _abandon_rest(self) -> None:
        self._check_stop_rule()  # more may have been asked for since an episode was recorded
        if self._alarm is None:
            return
        # Episodes that have ended and wait for their verdict are not touched: they have a deadline already.
        self._is_stopping = True
        log.info("stragglers are cut off: %d running episodes are abandoned", len(self.running))
        for episode in list(self.running.values()):
            episode.abandon()
