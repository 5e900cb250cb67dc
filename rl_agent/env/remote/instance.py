"""An environment that lives in another process, for those who step it: `env.protocol.Environment`.

place (waits for one, and is made there) ─► reset ─► step ─► … ─► close (gives the place back)
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from rl_agent.env.remote.caller import Answer, Call, Caller
from rl_agent.env.remote.wire import (
    Act,
    CloseInstance,
    Make,
    NoPlace,
    NotMade,
    Reset,
    Seen,
    Shown,
    Stepped,
    result_of,
)
from rl_agent.errors import EnvironmentLost, EnvironmentUnavailable
from rl_agent.types import Observation, StepResult, Task


class Place(Protocol):
    """The place where one instance lives: a worker here, or a server."""

    caller: Caller

    async def images(self, instance: int, seen: Seen) -> tuple[str, ...]:
        """Return the paths of an observation's images on this machine."""

    def loss(self, instance: int, error: EnvironmentLost | EnvironmentUnavailable) -> Exception:
        """Return what the loss of this place means for one of its instances."""

    def leave(self, instance: int, *, is_closed: bool) -> None:
        """Give the place back; `is_closed` if the instance has said so, or there was none."""


class Places(Protocol):
    """Whoever has places to give: the workers here, or the servers."""

    @property
    def make_timeout_s(self) -> float | None:
        """Return how long a host may take to make an instance; None where something else bounds that."""

    async def take(self, instance: int, crashes: int) -> Place:
        """Wait for a place and take it."""

    def is_full(self, place: Place) -> None:
        """Note that a place that seemed free was none."""

    def next_number(self) -> int:
        """Return a number for an instance."""


class RemoteInstance:
    """One instance; it has a place from `place` or the first `reset` on until it is closed."""

    def __init__(self, places: Places, kind: str, crashes: int = 0) -> None:
        self._places = places
        self._kind = kind
        self._crashes = crashes
        self._number = places.next_number()
        self._place: Place | None = None

    async def place(self) -> None:
        """Wait for a place, which is no time of the environment's, and make the instance there.

        Raises what its constructor raises, EnvironmentLost, EnvironmentUnavailable, and RetryLater if there
        will be no place.
        """
        while self._place is None:
            place = await self._places.take(self._number, self._crashes)
            try:
                await self._make(place)
            except NoPlace:
                place.leave(self._number, is_closed=True)
                self._places.is_full(place)
            except BaseException as error:
                if not isinstance(error, Exception):  # cancelled
                    self._unmake(place)
                place.leave(self._number, is_closed=True)
                raise
            else:
                self._place = place

    async def _make(self, place: Place) -> None:
        limit_s = self._places.make_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._ask(place, lambda call: Make(call, self._number, self._kind, self._crashes))
        except TimeoutError:
            self._unmake(place)
            late = NotMade(f"it has made no environment within {limit_s:g} s")
            raise place.loss(self._number, late) from late

    def _unmake(self, place: Place) -> None:
        """Close an instance that nobody waits for, and that may be made after all."""
        place.caller.tell(CloseInstance(place.caller.next_number(), self._number))

    async def reset(self, task: Task, seed: int) -> Observation:
        await self.place()
        place = self._place
        assert place is not None
        shown = await self._ask(place, lambda call: Reset(call, self._number, task, seed))
        assert isinstance(shown, Shown)
        return Observation(shown.seen.text, await place.images(self._number, shown.seen))

    async def step(self, action: str) -> StepResult:
        place = self._place
        assert place is not None
        stepped = await self._ask(place, lambda call: Act(call, self._number, action))
        assert isinstance(stepped, Stepped)
        return result_of(stepped, await place.images(self._number, stepped.seen))

    async def close(self) -> None:
        place, self._place = self._place, None
        if place is None:
            return
        is_closed = False
        try:
            await place.caller.ask(lambda call: CloseInstance(call, self._number))
            is_closed = True
        except EnvironmentLost:
            pass  # it went with its process
        finally:
            place.leave(self._number, is_closed=is_closed)

    async def _ask(self, place: Place, make: Callable[[int], Call]) -> Answer:
        try:
            return await place.caller.ask(make)
        except NoPlace:
            raise
        except (EnvironmentLost, EnvironmentUnavailable) as error:
            raise place.loss(self._number, error) from error
