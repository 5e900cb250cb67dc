"""One rank's part of a rollout: the collector, with what watches it and what it adds up to."""

import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tool_formats import ToolFormat
from rl_agent.cluster.member.member import Member
from rl_agent.engine.client import EngineClient
from rl_agent.errors import deliberate
from rl_agent.judge.judge import ModelJudge
from rl_agent.monitor import progress
from rl_agent.pool import run_pool
from rl_agent.rollout.collector.collect import Collector
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.failures import TracebackLog, log_of_agent
from rl_agent.rollout.collector.limit import LimitRule, follow_pressure
from rl_agent.rollout.collector.metrics import RolloutMetrics
from rl_agent.rollout.collector_setup import collect_settings, episode_setup, policy_of
from rl_agent.rollout.head_start import HeadStartQueue
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Assignment, Ledger
from rl_agent.rollout.shared_places import SharedPlaces
from rl_agent.types import Status, Trajectory

CHECK_INTERVAL_S = 1.0
"""Seconds between two looks at whether this member is still one."""


class RankRollout:
    """One rank's part of a rollout; used once. It counts what it recorded, and the files given to `count`."""

    def __init__(
        self,
        assignment: Assignment,
        member: Member,
        ledger: Ledger,
        *,
        engine: EngineClient,
        chat: ChatTokenizer,
        shared: SharedPlaces,
        shard: RankShard,
        judge: ModelJudge | None,
        tool_format: ToolFormat | None = None,
    ) -> None:
        config, rollout = assignment.config, assignment.config.rollout
        self._assignment = assignment
        self._member = member
        self._ledger = ledger
        self._engine = engine
        self._started = time.monotonic()
        self._limit_rule = LimitRule(rollout.min_vllm_sessions, rollout.max_vllm_sessions)
        self._gate = shared.gate
        self._at_order = self._totals()
        self._metrics = RolloutMetrics(assignment.split, success_reward=config.trainer.reward_threshold)
        self._lengths = shared.lengths.get(assignment.split)
        policy = policy_of(
            config,
            assignment.split,
            engine=engine,
            chat=chat,
            gate=self._gate,
            lengths=self._lengths,
            tool_format=tool_format,
            min_weight_version=assignment.min_weight_version,
        )
        self.tracebacks = TracebackLog(assignment.plan.logs_dir / "environments.log")
        setup = replace(
            episode_setup(config, assignment.split, policy, shared.environments),
            iteration=assignment.iteration,
            images=config.paths.images,
            rank=member.rank,
            agent_log=partial(log_of_agent, assignment.plan.logs_dir / "agents.log"),
            tracebacks=self.tracebacks,
        )
        self.collector = Collector(
            collect_settings(config, assignment.split),
            left=ledger.left,
            start_episode=lambda spec: Episode(spec, setup),
            writer=shard,
            places=shared.places,
            judge=judge,
            on_recorded=self._metrics.add,
            whole=lambda: ledger.asked if member.is_master and member.is_alone else None,
        )

    def count(self, recorded: Iterable[Trajectory]) -> int:
        """Take over what files hold; an episode that was counted before is not counted again.

        Returns how many there were. Raises StoreError for an episode of another sample.
        """
        number = 0
        for trajectory in recorded:
            number += 1
            if self._ledger.record(trajectory.key):
                self.collector.ended[trajectory.status] += 1
                self._metrics.add(trajectory)
                if self._lengths is not None:
                    self._lengths.add_all(trajectory)
        return number

    def keep_lengths(self) -> None:
        """Keep the lengths for the next iteration; called once the files of all ranks are counted."""
        if self._lengths is not None:
            assignment = self._assignment
            self._lengths.save(assignment.config.paths.response_lengths(assignment.split))

    async def collect(self, queue: HeadStartQueue) -> None:
        """Run what `queue` gives. Raises like `Collector.collect`, and RetryLater of what is watched."""
        try:
            async with asyncio.TaskGroup() as jobs:
                watching = jobs.create_task(self._watch(queue), name="watch the rollout")
                try:
                    await self.collector.collect(queue)
                finally:
                    watching.cancel()
        except BaseExceptionGroup as group:
            raise deliberate(group) from None

    async def _watch(self, queue: HeadStartQueue) -> None:
        """Watch and show the rollout once it is the one that was ordered."""
        await queue.ordered()
        self._at_order = self._totals()
        async with progress.shown(self.snapshot), asyncio.TaskGroup() as jobs:
            jobs.create_task(self._follow_pressure(), name="follow engine pressure")
            jobs.create_task(self._check_member(), name="check membership")
            if self._assignment.config.is_pooled:
                jobs.create_task(self._check_engine(), name="check this node's engine")

    async def _follow_pressure(self) -> None:
        await follow_pressure(self._gate, self._limit_rule, self._engine.pressure)

    async def _check_member(self) -> None:
        assignment = self._assignment
        while True:
            self._member.check()
            done, submitted = self.collector.done, self.collector.submitted
            where = f"{assignment.split} iteration {assignment.iteration}"
            self._member.set_doing(
                f"{where}: {done} of {submitted} episodes, {self._gate.in_use} requests generating"
            )
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _check_engine(self) -> None:
        while True:
            await asyncio.to_thread(run_pool.check_engine, self._assignment.plan, os.environ)
            await asyncio.sleep(CHECK_INTERVAL_S)

    def commonest_failures(self) -> list[str]:
        """Return why most of the counted episodes without a reward have none, the commonest reason first."""
        return self._metrics.reasons.commonest()

    def record(self) -> dict[str, object]:
        """Return the iteration's line of `metrics.jsonl`; its seconds are this rank's since the order."""
        split, totals = self._assignment.split, zip(self._totals(), self._at_order, strict=True)
        elapsed_s, idle_s, tokens = (now - before for now, before in totals)
        numbers = self._metrics.numbers() | {
            f"{split}/engine_tokens_per_s": tokens / elapsed_s,
            f"{split}/engine_idle_share": idle_s / elapsed_s,
            f"{split}/rollout_s": elapsed_s,
        }
        place = {"time": time.time(), "iteration": self._assignment.iteration, "split": split}
        counts: dict[str, object] = {
            f"{split}/commonest_failures": self.commonest_failures(),
            f"{split}/outcomes": self._metrics.outcomes(),
            f"{split}/examples": self._metrics.examples.record() if split == "test" else [],
        }
        return {**place, **numbers, **{name: count for name, count in counts.items() if count}}

    def _totals(self) -> tuple[float, float, int]:
        """Return the clock's seconds, those without a request at the engine, and the tokens sampled."""
        return time.monotonic(), self._gate.idle_s(), self._gate.sampled_tokens

    def snapshot(self) -> progress.RolloutSnapshot:
        collector, total = self.collector, self._metrics.total
        completed = collector.ended[Status.COMPLETED]
        return progress.RolloutSnapshot(
            split=self._assignment.split,
            iteration=self._assignment.iteration,
            submitted=collector.submitted,
            done=collector.done,
            running=len(collector.running),
            not_completed=collector.done - completed,
            reward_mean=total.reward_mean if completed else None,
            response_tokens=self._engine.response_tokens,
            done_here=collector.recorded_here,
            elapsed_s=time.monotonic() - self._started,
            failures=self._metrics.failures,
            commonest_failures=tuple(self.commonest_failures()),
        )
