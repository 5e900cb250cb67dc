"""The event loop of a process's rollouts.

It stands still between two of them, for the moment in which run.sh orders the next one. What was begun of
that one stays on it: requests go on at their engines, and what they answer waits in the connections.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rl_agent.cluster.member.member import Member
from rl_agent.config.plan import Plan
from rl_agent.rollout.sample import Assignment
from rl_agent.system.garbage import rare_garbage_collection
from rl_agent.system.worker_threads import WorkerThreads
from rl_agent.types import EpisodeCounts

if TYPE_CHECKING:  # the process of a node that only trains imports none of it
    from rl_agent.engine.connections import EngineConnections
    from rl_agent.rollout.run import NextOf, Rollouts

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class _Order:
    assignment: Assignment
    member: Member
    counts: asyncio.Future[EpisodeCounts]


class RolloutLoop:
    """A context manager; rollouts run on it one after the other, and what was begun early ends with it."""

    def __init__(self, next_of: "NextOf | None" = None) -> None:
        self._next_of = next_of
        self._runner: asyncio.Runner | None = None
        self._serving: asyncio.Task[None] | None = None
        """Runs the orders, as long as each was begun early."""
        self._rollouts: Rollouts | None = None
        self._connections: EngineConnections | None = None
        """Those to the engine; they outlive a rollout."""
        self._orders: asyncio.Queue[_Order]

    @property
    def has_next(self) -> bool:
        """Return whether a rollout was begun before its order."""
        return self._rollouts is not None and self._rollouts.has_next

    def run(self, assignment: Assignment, member: Member) -> tuple[EpisodeCounts | None, int]:
        """Return a rollout's counts, or None and the number of the signal (INT, TERM) that cancelled it.

        A second Ctrl+C ends the process at once; a second TERM does not, as run.sh and Slurm may each send
        one. Afterwards the process is as it was.
        """
        self._runner = self._runner or _runner(assignment.config.env_config.server_size)
        received: list[int] = []
        with _handlers_kept(), rare_garbage_collection():
            counts = self._runner.run(self._run(assignment, member, received))
        return counts, received[0] if received else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            with _handlers_kept():
                self._runner.run(self._close())
                self._runner.close()

    async def _run(self, assignment: Assignment, member: Member, received: list[int]) -> EpisodeCounts | None:
        loop = asyncio.get_running_loop()
        if self._rollouts is None or not self._rollouts.goes_on_with(assignment.split, assignment.iteration):
            await self._end()
        if self._serving is None:
            self._orders = asyncio.Queue()
            self._serving = loop.create_task(self._serve(assignment.plan))
        order, serving = _Order(assignment, member, loop.create_future()), self._serving
        self._orders.put_nowait(order)
        for number in _SIGNALS:
            loop.add_signal_handler(number, _cancel, serving, number, received)
        awaited: set[asyncio.Future[Any]] = {serving, order.counts}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            self._serving = None
            if received and serving.cancelled():
                return None
            serving.result()
        return order.counts.result()

    async def _serve(self, plan: Plan) -> None:
        """Run the first order, and those after it that were begun before they came."""
        from rl_agent.env.agent.environment import AgentEnvironment
        from rl_agent.rollout.engine_access import engine_connections
        from rl_agent.rollout.run import none_follows, open_rollouts

        AgentEnvironment.stays_open = True
        self._connections = self._connections or engine_connections(plan)
        try:
            next_of = self._next_of or none_follows
            async with open_rollouts(plan.config, next_of, self._connections) as rollouts:
                self._rollouts = rollouts
                while True:
                    order = await self._orders.get()
                    counts = await rollouts.run(order.assignment, order.member)
                    if not rollouts.has_next:
                        break
                    order.counts.set_result(counts)
        finally:
            self._rollouts = None
        order.counts.set_result(counts)

    async def _end(self) -> None:
        """Break off what was begun of a rollout that was not ordered."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})

    async def _close(self) -> None:
        from rl_agent.env.agent.environment import AgentEnvironment

        await self._end()
        if self._connections is not None:
            await self._connections.close()
        AgentEnvironment.stays_open = False
        await AgentEnvironment.close_shared()


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Give the process its signal handlers back: a loop leaves none, and a second TERM would kill at once."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _runner(threads: int) -> asyncio.Runner:
    import uvloop

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    runner.get_loop().set_default_executor(WorkerThreads(threads))
    return runner


def _cancel(job: asyncio.Task[Any], number: int, received: list[int]) -> None:
    if not received:
        received.append(number)
        job.cancel()
    elif number == signal.SIGINT:
        os._exit(128 + received[0])
