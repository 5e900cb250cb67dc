"""The engine's side of GPU sharing: it uses the GPUs only during its turns.

begin ─► the engine serves, until its turn is over ─► drained ─► asleep, which the trainer is told
  ▲                                                                │ awake again
  └────────────────────────────────────────────────────────────────┘
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rl_agent.pool.engines.answers import StreamError
from rl_agent.pool.engines.link import EngineLink
from rl_agent.pool.gpu_turns import POLL_S, EngineTurnState, TurnFiles
from rl_agent.system.processes import ProcessId
from rl_agent.weights.load.vllm_load import VllmServer

log = logging.getLogger(__name__)
IDLE_TIMEOUT_S = 10.0


class EngineTurns:
    """The turns of an engine; it uses the GPUs only between `begin` and `rest`."""

    def __init__(self, files: TurnFiles) -> None:
        self._files = files
        self._has_served = False
        self._worker = ProcessId.of(os.getpid())

    async def begin(self, leaving: asyncio.Event, check: Callable[[], None] = lambda: None) -> None:
        """Wait until it is the engine's turn, `leaving` is set, or `check` raises."""
        while not leaving.is_set():
            check()
            if self._is_ours():
                self._write(is_awake=True)
                if self._is_ours():
                    return
            self.rest()
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def until_over(
        self, leaving: asyncio.Event, jobs: asyncio.TaskGroup
    ) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set when the turn ends or `leaving` is set."""
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                await asyncio.sleep(POLL_S)
                if leaving.is_set() or not self._is_ours():
                    over.set()

        watching = jobs.create_task(watch(), name="end of the turn")
        try:
            yield over
        finally:
            watching.cancel()

    def served(self) -> None:
        """Record that the engine has been ready."""
        self._has_served = True

    def rest(self) -> None:
        """Record that the engine no longer uses the GPUs."""
        self._write(is_awake=False)

    def _is_ours(self) -> bool:
        turn = self._files.read_turn()
        return turn is not None and (turn.is_engines or not turn.trainer.is_running)

    def _write(self, *, is_awake: bool) -> None:
        turn = self._files.read_turn()
        state = EngineTurnState(turn.number if turn else 0, is_awake, self._has_served, self._worker)
        if state != self._files.read_engine():
            self._files.write_engine(state)


async def sleep_until_turn(
    turns: EngineTurns,
    server: VllmServer,
    link: EngineLink,
    check_alive: Callable[[], None],
    leaving: asyncio.Event,
) -> None:
    """Let the engine sleep until its next turn, or until `leaving` is set.

    The engine has been drained; what the manager aborted there may take a moment to end. Raises WeightsError
    if it does not sleep or wake, and whatever `check_alive` raises.
    """
    await _wait_idle(link)
    await server.sleep()
    turns.rest()
    log.info("the engine sleeps: it is the trainer's turn")
    await turns.begin(leaving, check_alive)
    if not leaving.is_set():
        await server.wake()


async def _wait_idle(link: EngineLink) -> None:
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            while True:
                load = await link.load()
                if load is None or not load.running:
                    return
                await asyncio.sleep(POLL_S)
    except (TimeoutError, StreamError) as error:
        log.warning("the engine may be busy: %s", error or "requests still run")
