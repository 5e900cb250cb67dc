"""The host's half of a connection: instances that are made, stepped and closed as the caller asks.

One job a call, and the calls of one instance one after the other. Whatever an environment raises goes to its
caller; what leaves the connection is closed with it. The same code serves a worker's instances and, at an
environment server, those of its workers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rl_agent.env.protocol import Environment
from rl_agent.env.remote.wire import (
    Act,
    Cancel,
    Closed,
    CloseInstance,
    Failed,
    HostMessage,
    Made,
    Make,
    Ping,
    Pong,
    Reset,
    Seen,
    Shown,
    WireError,
    encode,
    failed_of,
    read_question,
    seen_of,
    stepped_of,
)
from rl_agent.env.values import checked_observation, checked_result
from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal
from rl_agent.types import Observation

log = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 10.0

MakeInstance = Callable[[Make], Awaitable[Environment]]
"""Makes the environment that is asked for; raises what its constructor raises."""


async def by_path(observation: Observation) -> Seen:
    """Send images as the paths of their files."""
    return seen_of(observation)


class InstanceHost:
    """The instances of one connection."""

    def __init__(
        self,
        make: MakeInstance,
        send: Callable[[bytes], None],
        jobs: asyncio.TaskGroup,
        *,
        show: Callable[[Observation], Awaitable[Seen]] = by_path,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self.instances: dict[int, Environment] = {}
        self._make = make
        self._send = send
        self._jobs = jobs
        self._show = show
        self._has_room = has_room
        self._making = set[int]()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    @property
    def taken(self) -> int:
        """The number of places that its instances take, those that are being made included."""
        return len(self.instances) + len(self._making)

    def receive(self, frame: bytes) -> None:
        """Take a frame of the caller. Raises WireError: whoever sends such a thing is to be cut off."""
        question = read_question(frame)
        if isinstance(question, Ping):
            self._answer(Pong())
        elif isinstance(question, Cancel):
            if (job := self._calls.get(question.call)) is not None:
                job.cancel()
        elif question.call in self._calls:
            raise WireError(f"the call {question.call} is running already")
        else:
            name = f"instance {question.instance}"
            job = self._jobs.create_task(self._run(question), name=name)
            self._calls[question.call] = job
            job.add_done_callback(lambda _: self._calls.pop(question.call, None))

    async def close(self) -> None:
        """End all calls, and close all instances."""
        for job in list(self._calls.values()):
            job.cancel()
        if self._calls:
            await asyncio.wait(list(self._calls.values()), timeout=CLOSE_TIMEOUT_S)
        for instance in list(self.instances):
            await self._close(instance)

    async def _run(self, question: Make | Reset | Act | CloseInstance) -> None:
        try:
            answer = await self._call(question)
        except asyncio.CancelledError as error:
            job = asyncio.current_task()
            if job is not None and job.cancelling():
                raise
            answer = failed_of(question.call, error)  # raised by the environment itself
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: they end this call only
            answer = failed_of(question.call, error)
        self._answer(answer, question.call)

    async def _call(self, question: Make | Reset | Act | CloseInstance) -> HostMessage:
        instance, call = question.instance, question.call
        if isinstance(question, CloseInstance):
            await self._close(instance)
            return Closed(call)
        if isinstance(question, Make):
            return await self._made(question)
        environment = self.instances.get(instance)
        if environment is None:
            raise EnvironmentFailure(f"there is no instance {instance}; it was closed")
        async with self._locks[instance]:
            if isinstance(question, Reset):
                shown = await environment.reset(question.task, question.seed)
                return Shown(call, await self._show(checked_observation(shown, "reset")))
            result = checked_result(await environment.step(question.action))
            return stepped_of(call, result, await self._show(result.observation))

    async def _made(self, question: Make) -> HostMessage:
        instance = question.instance
        if instance in self.instances or instance in self._making:
            raise EnvironmentFailure(f"there is an instance {instance} already")
        if not self._has_room():
            return Failed(question.call, "full", "all places are taken")
        self._making.add(instance)
        try:
            self.instances[instance] = await self._make(question)
            self._locks[instance] = asyncio.Lock()
        finally:
            self._making.remove(instance)
        return Made(question.call)

    async def _close(self, instance: int) -> None:
        environment = self.instances.pop(instance, None)
        self._locks.pop(instance, None)
        if environment is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await environment.close()
        except Exception as error:  # the episode is over; only its environment is the poorer
            log.warning("an environment did not close: %s", f"{type(error).__name__}: {error}"[:500])

    def _answer(self, answer: HostMessage, call: int = 0) -> None:
        try:
            frame = encode(answer)
        except EnvironmentRefusal as error:
            frame = encode(failed_of(call, error))
        self._send(frame)
