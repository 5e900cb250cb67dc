"""Runs the episodes of an iteration, without a barrier anywhere.

    spec ─► place (an environment may live) ─► episode ─► place given back ─► judge ─► durable ─► counted
              │ at most `server_size`                        │ at most MAX_FINISHING in this half

As one episode leaves its place the next starts, whatever its siblings do; while an environment works, its
episode holds no place at the engine. Nothing is counted before it is on the disk, and what is on the disk
is not kept in memory. Every episode ends in exactly one way:

    submitted = completed + failed + timed_out + abandoned

unless the rollout itself is broken off (cancelled, engine gone, disk full): then what was not recorded is
still to do, and a resume does it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from rl_agent.errors import JudgeOutage, deliberate
from rl_agent.reward.verdict import Verdict
from rl_agent.rollout.episode import Episode
from rl_agent.rollout.stop_rule import StopRule
from rl_agent.types import EpisodeKey, EpisodeSpec, Failure, Status, Trajectory

log = logging.getLogger(__name__)

MAX_FINISHING = 1024
"""Episodes that wait for the judge or the disk; more than that and no new one starts."""

Judge = Callable[[Trajectory], Awaitable[Verdict]]
"""Raises JudgeOutage where there is no verdict."""


class Writer(Protocol):
    """What the collector needs of `rollout.store.ShardWriter`."""

    async def append(self, trajectory: Trajectory) -> None: ...


@dataclass(frozen=True, slots=True)
class CollectSettings:
    server_size: int
    stop_rule: StopRule
    judge_timeout_s: float


class Collector:
    """Collects one sample; used once. Its counts and `running` may be read at any time."""

    def __init__(
        self,
        settings: CollectSettings,
        *,
        start_episode: Callable[[EpisodeSpec], Episode],
        writer: Writer,
        judge: Judge | None = None,
        on_recorded: Callable[[Trajectory], None] = lambda trajectory: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.submitted = 0
        self.ended: Counter[Status] = Counter()
        """Recorded episodes, those of before a resume included."""
        self.running: dict[EpisodeKey, Episode] = {}
        self.finishing = 0
        """Episodes that wait for the judge or the disk."""
        self._settings = settings
        self._start_episode = start_episode
        self._writer = writer
        self._judge = judge
        self._on_recorded = on_recorded
        self._clock = clock
        self._places = asyncio.Semaphore(settings.server_size)
        self._unrecorded = asyncio.Semaphore(settings.server_size + MAX_FINISHING)
        self._deadline: float | None = None
        self._is_stopping = False
        self._alarm: asyncio.TimerHandle | None = None

    async def collect(self, specs: Iterable[EpisodeSpec], *, recorded: Counter[Status], total: int) -> None:
        """Run `specs`; `recorded` counts the episodes of `total` that a resume found done.

        Raises RetryLater if the engine is gone, StoreError if the disk takes no more.
        """
        self.submitted = total
        self.ended += recorded
        self._check_stop_rule()
        try:
            async with asyncio.TaskGroup() as jobs:
                for spec in specs:
                    await self._places.acquire()
                    await self._unrecorded.acquire()
                    jobs.create_task(self._run(spec), name=str(spec.key))
        except BaseExceptionGroup as group:
            raise deliberate(group) from None
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    @property
    def done(self) -> int:
        return self.ended.total()

    def summary(self) -> str:
        """The account of a rollout in one line; states the difference where one is left."""
        parts = " ".join(f"{status}={self.ended[status]}" for status in Status)
        missing = self.submitted - self.done
        return f"submitted={self.submitted} {parts}" + (f" unrecorded={missing}" if missing else "")

    async def _run(self, spec: EpisodeSpec) -> None:
        try:
            trajectory = await self._play(spec)
            self.finishing += 1
            try:
                if self._judge is not None and trajectory.status is Status.COMPLETED:
                    trajectory = await self._judged(self._judge, trajectory)
                await self._writer.append(trajectory)
            finally:
                self.finishing -= 1
        finally:
            self._unrecorded.release()
        self.ended[trajectory.status] += 1
        self._on_recorded(trajectory)
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
        """The trajectory with the judge's reward, or failed without one: an outage is no reward of 0."""
        limit_s = self._settings.judge_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                verdict = await judge(trajectory)
        except JudgeOutage as error:
            failure = Failure("JudgeOutage", str(error))
        except TimeoutError:
            failure = Failure("JudgeOutage", f"no verdict within {limit_s:g} s")
        else:
            return replace(trajectory, reward=verdict.reward, reward_detail=verdict.detail)
        return replace(trajectory, status=Status.FAILED, reward=None, failure=failure)

    def _check_stop_rule(self) -> None:
        now = self._clock()
        rule, total = self._settings.stop_rule, self.submitted
        deadline = rule.deadline(done=self.done, total=total, now=now, deadline=self._deadline)
        if deadline is not None and self._deadline is None and self.done < total:
            self._deadline = deadline
            log.info("%d of %d episodes ended; the rest has %.0f s", self.done, total, deadline - now)
            self._alarm = asyncio.get_running_loop().call_later(deadline - now, self._abandon_rest)

    def _abandon_rest(self) -> None:
        # Episodes that have ended and wait for their verdict are not touched: they have a deadline already.
        self._is_stopping = True
        log.info("grace period over: %d running episodes are abandoned", len(self.running))
        for episode in list(self.running.values()):
            episode.abandon()
