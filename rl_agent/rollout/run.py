"""The rollouts of one node, one ordered after the other: the parts put together.

    every rank   plan ─► sample ─► engine (which model?) ─► chunk after chunk ─► a file of its own
    master       besides: publishes the chunks, and ends the iteration (`rollout.master_rollout`)

One node is the case of one rank. A rank that dies, leaves or is slow has its chunks run by others. If the
engine is lost (RetryLater) the same call, made again, goes on with what the rank has claimed.

    ordered   ██████████████████▓▓▒▒░░        its tail frees places
    the next                    ░░▒▒▓▓██████  which the next ones take, before they are ordered, if they may
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tool_template import tool_format_of
from rl_agent.cluster.member.member import Member
from rl_agent.config.plan import Config
from rl_agent.engine.connections import EngineConnections
from rl_agent.engine.model import ResolvedModel, resolve_model
from rl_agent.errors import HarnessError, deliberate
from rl_agent.judge.judge import ModelJudge
from rl_agent.judge.judge_checks import try_out
from rl_agent.rollout import takeover
from rl_agent.rollout.conditions import deciding_values
from rl_agent.rollout.engine_access import check_tokens, engine_client
from rl_agent.rollout.follow import follow
from rl_agent.rollout.head_start import HeadStartQueue
from rl_agent.rollout.master_rollout import MasterRollout
from rl_agent.rollout.rank_rollout import RankRollout
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Assignment, Ledger, Sample, sample_of
from rl_agent.rollout.shared_places import SharedPlaces
from rl_agent.rollout.trajectories.shard import ShardHeader
from rl_agent.types import EpisodeCounts, Split

log = logging.getLogger(__name__)

NextOf: TypeAlias = Callable[[Assignment], Awaitable[Assignment | None]]
"""Waits until the rollout after one may begin early, and returns its assignment; None if it may not."""


async def none_follows(assignment: Assignment) -> Assignment | None:
    """Let no rollout begin before it is ordered."""
    return None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A rollout that runs, ordered or not."""

    assignment: Assignment
    queue: HeadStartQueue
    job: asyncio.Task[EpisodeCounts | Exception]

    def is_of(self, split: Split, iteration: int) -> bool:
        return (self.assignment.split, self.assignment.iteration) == (split, iteration)


class Rollouts:
    """The rollout that was ordered, and what was begun of those after it; made by `open_rollouts`."""

    def __init__(self, shared: SharedPlaces, jobs: asyncio.TaskGroup, next_of: NextOf) -> None:
        self._shared = shared
        self._jobs = jobs
        self._next_of = next_of
        self._early: deque[_Begun] = deque()
        """Those that were begun before their order, in order."""

    @property
    def has_next(self) -> bool:
        """Return whether the next rollout was begun before its order."""
        return bool(self._early)

    def has_begun(self, split: Split, iteration: int) -> bool:
        """Return whether this rollout is the next one, was begun before its order, and goes on."""
        return bool(self._early) and self._early[0].is_of(split, iteration) and not self._early[0].job.done()

    def goes_on_with(self, split: Split, iteration: int) -> bool:
        """Return whether what was begun goes on where this rollout is ordered.

        It is that, or the evaluation before it: of the same iteration.
        """
        return self.has_begun(split, iteration) or (split == "test" and self.has_begun("train", iteration))

    async def run(self, assignment: Assignment, member: Member) -> EpisodeCounts:
        """Collect this rank's share of an iteration; on the master until the iteration is complete.

        Returns the counts: the master's of the whole iteration, another's of what it did. Raises ConfigError,
        RetryLater if the engine or the membership is gone, StoreError if the disk takes no more.
        """
        is_begun = self.has_begun(assignment.split, assignment.iteration)
        begun = self._early.popleft() if is_begun else self._begin(assignment, member)
        begun.queue.order(member.work(assignment.iteration, assignment.phase))
        following = self._jobs.create_task(self._begin_more(begun, member), name="begin what follows")
        try:
            result = await begun.job
        finally:
            following.cancel()
        if isinstance(result, Exception):
            raise result
        return result

    def end(self) -> None:
        """Break off what was begun early; what it has recorded counts once its rollout is ordered."""
        for begun in self._early:
            if not begun.job.cancel() and not begun.job.cancelled():
                iteration, error = begun.assignment.iteration, begun.job.result()
                log.warning("iteration %d was begun early and ended before its order: %s", iteration, error)

    def _begin(self, assignment: Assignment, member: Member) -> _Begun:
        queue = HeadStartQueue()
        name = f"{assignment.split} iteration {assignment.iteration}"
        outcome = _outcome(_collect(assignment, member, self._shared, queue))
        return _Begun(assignment, queue, self._jobs.create_task(outcome, name=name))

    async def _begin_more(self, begun: _Begun, member: Member) -> None:
        """Begin one rollout after the other, once all of the one before is given out, as soon as it may."""
        if not member.is_master:
            return
        last = self._early[-1] if self._early else begun
        while True:
            await last.queue.all_given.wait()
            try:
                following = await self._next_of(last.assignment)
            except HarnessError as error:  # whoever orders that rollout meets it, too
                log.warning("the next rollout does not begin early: %s", error)
                return
            if following is None:
                return
            log.info("iteration %d begins in the places that are free", following.iteration)
            last = self._begin(following, member)
            self._early.append(last)


@asynccontextmanager
async def open_rollouts(
    config: Config, next_of: NextOf = none_follows, connections: EngineConnections | None = None
) -> AsyncIterator[Rollouts]:
    """Give what runs rollouts, one ordered after the other; what was begun early ends with the block.

    `connections` to the engine, if given, are left open at its end.
    """
    shared = SharedPlaces.of(config, connections)
    try:
        async with shared.environments, asyncio.TaskGroup() as jobs:
            rollouts = Rollouts(shared, jobs, next_of)
            try:
                yield rollouts
            finally:
                rollouts.end()
    except BaseExceptionGroup as group:
        raise deliberate(group) from None


async def run_rollout(assignment: Assignment, member: Member) -> EpisodeCounts:
    """Run one rollout, after which none follows. Returns and raises like `Rollouts.run`."""
    async with open_rollouts(assignment.config) as rollouts:
        return await rollouts.run(assignment, member)


async def _outcome(rollout: Awaitable[EpisodeCounts]) -> EpisodeCounts | Exception:
    """Return what a rollout returns or raises: its failure is that of whoever ordered it."""
    try:
        return await rollout
    except Exception as error:
        return error


async def _collect(
    assignment: Assignment, member: Member, shared: SharedPlaces, queue: HeadStartQueue
) -> EpisodeCounts:
    """Run one rollout among what it shares with another; before the order as far as a master may alone."""
    plan, config, paths = assignment.plan, assignment.config, assignment.config.paths
    sample, model, begins_with, chat = await asyncio.to_thread(_prepare, assignment, shared)
    ledger = Ledger(sample)
    header = ShardHeader(
        run_id=plan.run_id,
        split=assignment.split,
        iteration=assignment.iteration,
        seed=config.seed,
        model=model.path,
        weight_version=model.weight_version,
        sample_digest=sample.digest,
        created_at=time.time(),
        attempt=plan.attempt,
    )
    async with AsyncExitStack() as stack:
        if member.is_master:
            stack.enter_context(takeover.sole_master(paths, header.split, header.iteration))
        engine = await stack.enter_async_context(engine_client(plan, model, shared.connections))
        await check_tokens(engine, chat, config, sample.specs[0].task.prompt)
        judge = None
        if config.rollout.reward == "judge":
            judge = await stack.enter_async_context(ModelJudge(config.openai_config, paths.judge_cache))
            tasks = {spec.task.task_id: spec.task for spec in sample.specs}
            await try_out(judge, config.openai_config, tasks.values())
        shard = RankShard(
            paths,
            header,
            ledger,
            rank=member.rank,
            is_sole=member.is_master and plan.command.num_nodes == 1,
            fsync=config.rollout.fsync,
            on_begun=queue.set_shard,
        )
        await stack.enter_async_context(shard)
        rollout = RankRollout(
            assignment,
            member,
            ledger,
            engine=engine,
            chat=chat,
            shared=shared,
            shard=shard,
            judge=judge,
            tool_format=tool_format_of(chat) if config.policy_config.has_tool_calls else None,
        )
        if member.is_master:
            master_rollout = MasterRollout(
                assignment, sample, ledger, header, begins_with, queue=queue, rollout=rollout, shard=shard
            )
            return await master_rollout.run()
        return await follow(header, may_differ=config.is_streaming, queue=queue, rollout=rollout, shard=shard)


def _prepare(
    assignment: Assignment, shared: SharedPlaces
) -> tuple[Sample, ResolvedModel, dict[str, Any], ChatTokenizer]:
    """Read and check what the rollout needs from the disk: a second in which another may run."""
    config = assignment.config
    sample, model = sample_of(assignment), resolve_model(config)
    shared.environments.check_here({spec.task.env for spec in sample.specs})
    chat = ChatTokenizer.load(model.path, config.model.chat_template_kwargs)
    return sample, model, deciding_values(config, assignment.split, model), chat
