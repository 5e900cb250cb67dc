"""The caller's half of a connection: calls that wait for their answers, and how long the host is silent.

ask ─► frame ─► host ─► frame ─► the waiting call
  │ cancelled: the host is told              │ connection closed, or a message that is none:
  └──────────────────────────────────────────┴─► every waiting call fails with why
"""

import asyncio
import itertools
import time
from collections.abc import Callable

from rl_agent.env.remote.wire import (
    Act,
    Cancel,
    Closed,
    CloseInstance,
    Draining,
    Failed,
    HostMessage,
    Made,
    Make,
    Ping,
    Pong,
    Reset,
    Shown,
    Stepped,
    WireError,
    encode,
    error_of,
    read_answer,
)
from rl_agent.errors import EnvironmentLost

Send = Callable[[bytes], None]
Call = Make | Reset | Act | CloseInstance
Answer = Made | Shown | Stepped | Closed


class Caller:
    """Speaks with one host, over whatever connection calls `receive` and `lose`."""

    def __init__(self, name: str, send: Send, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.lost: EnvironmentLost | None = None
        """The reason that the host can be asked no more."""
        self.is_draining = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when it begins to drain or is lost."""
        self.on_pong: Callable[[], None] = lambda: None
        self._send = send
        self._clock = clock
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._asked: dict[int, type[Answer]] = {}
        self._heard_at = clock()
        self._pinged_at: float | None = None

    async def ask(self, make: Callable[[int], Call]) -> Answer:
        """Send what `make` makes of the call's number, and return the answer to it.

        Raises what the environment raised there, and EnvironmentLost if the host is gone.
        """
        if self.lost is not None:
            raise self._loss()
        call = next(self._numbers)
        question = make(call)
        frame = encode(question)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[call] = answer
        self._asked[call] = _ANSWER_TO[type(question)]
        try:
            self._send(frame)
            return await answer
        finally:
            del self._waiting[call], self._asked[call]
            if not answer.done() or answer.cancelled():
                self.tell(Cancel(call))

    def tell(self, message: Cancel | CloseInstance) -> None:
        """Send what nobody waits for."""
        if self.lost is None:
            self._send(encode(message))

    def next_number(self) -> int:
        """Return the number of a call that nobody waits for."""
        return next(self._numbers)

    def ping(self) -> None:
        if self._pinged_at is None:
            self._pinged_at = self._clock()
        self._send(encode(Ping()))

    @property
    def silent_s(self) -> float:
        """Return for how long a ping has waited while nothing came."""
        if self._pinged_at is None:
            return 0.0
        return self._clock() - max(self._pinged_at, self._heard_at)

    def excuse(self) -> None:
        """Count its silence from now: this process was itself not running for a while."""
        self._heard_at = self._clock()

    def receive(self, frame: bytes) -> None:
        """Take a frame of the host. One that is not a message loses the host."""
        self._heard_at = self._clock()
        try:
            self._take(read_answer(frame))
        except WireError as error:
            self.lose(error)

    def lose(self, error: EnvironmentLost) -> None:
        """No answer will come any more; every waiting call raises `error`."""
        if self.lost is not None:
            return
        self.lost = error
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(self._loss())
                answer.add_done_callback(_seen)
        self.on_change()

    def _loss(self) -> EnvironmentLost:
        """Return a new exception each time: one that is raised twice grows its traceback."""
        assert self.lost is not None
        return EnvironmentLost(f"{self.name}: {self.lost}", is_suspect=self.lost.is_suspect)

    def _take(self, message: HostMessage) -> None:
        if isinstance(message, Pong):
            self._pinged_at = None
            self.on_pong()
            return
        if isinstance(message, Draining):
            self.is_draining = True
            self.on_change()
            return
        answer = self._waiting.get(message.call)
        if answer is None:
            return  # its caller has gone
        if isinstance(message, Failed):
            if not answer.done():
                answer.set_exception(error_of(message))
                answer.add_done_callback(_seen)
        elif type(message) is not self._asked[message.call]:
            raise WireError(f"a {type(message).__name__} as the answer to another question")
        elif not answer.done():
            answer.set_result(message)


_ANSWER_TO: dict[type[Call], type[Answer]] = {Make: Made, Reset: Shown, Act: Stepped, CloseInstance: Closed}


def _seen(answer: "asyncio.Future[Answer]") -> None:
    """Keep asyncio from complaining of an exception that its caller no longer waits for."""
    if not answer.cancelled():
        answer.exception()
