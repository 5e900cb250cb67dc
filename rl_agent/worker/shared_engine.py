"""One engine for several workers of a process: each brings it the adapter of its own pool's run.

    the first that needs it starts it ─► the others find it ─► the last that leaves ends it
                                              │ it dies, or cannot serve any more: all of them are told
                                              └ one leaves: its slot is zero again, the others go on

Loads come one after the other, so that none resumes what another has paused.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp

from rl_agent.errors import EngineDied, WeightsError
from rl_agent.weights.format.adapter import is_adapter
from rl_agent.weights.load.base import LoadRefused, LoadReport
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.load.vllm_names import CLEAR_ADAPTER
from rl_agent.weights.store.store import Snapshot
from rl_agent.worker.engine_process import EngineCommand, EngineProcess

log = logging.getLogger(__name__)


class SharedEngine:
    """The engine that is there now, and who uses it; all leave once `leaving` is set."""

    def __init__(self, leaving: asyncio.Event) -> None:
        self.leaving = leaving
        self.has_joined = False
        """A pool has taken it, so the others' managers are waited for without a limit."""
        self.changing = asyncio.Lock()
        self.loading = asyncio.Lock()
        self.users: set[SharedProcess] = set()

    async def start(self, command: EngineCommand, model: str, log_file: Path, slot: int) -> "SharedProcess":
        """Return the engine, started unless it runs. Raises EngineDied if it serves another model."""
        async with self.changing:
            running = next((user for user in self.users if user.exit_status is None), None)
            if running is not None and running.model != model:
                raise EngineDied(f"it serves {running.model} for another pool, and this one wants {model}")
            process = running or await EngineProcess.start(command, model, log_file)
            user = SharedProcess(process, self, slot)
            self.users.add(user)
            return user


class SharedProcess(EngineProcess):
    """The engine, as one of its users has it."""

    def __init__(self, engine: EngineProcess, shared: SharedEngine, slot: int) -> None:
        super().__init__(engine.process, engine.url, engine.model)
        self._shared = shared
        self.slot = slot
        self._server: SlotServer | None = None

    def vllm(self, session: aiohttp.ClientSession) -> VllmServer:
        self._server = SlotServer(session, self.url, self.model, self.slot, self._shared.loading)
        return self._server

    async def lose(self) -> None:
        await super().end()

    async def end(self) -> None:
        """Leave the engine to the others as it was before; the last one ends it."""
        async with self._shared.changing:
            self._shared.users.discard(self)
            is_needed = any(user.process is self.process for user in self._shared.users)
            is_ending = self._shared.leaving.is_set()
            if is_needed and self.exit_status is None and (is_ending or await self._is_cleared()):
                return
            await super().end()

    async def _is_cleared(self) -> bool:
        try:
            if self._server is not None:
                await self._server.clear()
            return True
        except WeightsError as error:
            log.warning("the shared engine ends for all its pools: %s", error)
            return False


class SlotServer(VllmServer):
    """A vLLM in which one slot is this run's."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, model: str, slot: int, turn: asyncio.Lock
    ) -> None:
        super().__init__(session, url, model)
        self.slot = slot
        self._turn = turn
        self._is_used = False

    async def load(
        self,
        snapshot: Snapshot,
        *,
        previous: Snapshot | None,
        on_loaded: Callable[[], Awaitable[None]] | None = None,
    ) -> LoadReport:
        """Load an adapter into the slot, once no other run loads; whoever cancels it leaves no pause behind.

        Raises LoadRefused for whole weights, before anything is paused.
        """
        if not is_adapter(snapshot.manifest):
            raise LoadRefused(
                "publish adapters alone (trainer.lora.publish=adapter) or use another engine: this one is"
                " shared with other runs and keeps the base model's weights"
            )
        async with self._turn:
            self._is_used = True
            try:
                return await super().load(snapshot, previous=previous, on_loaded=on_loaded)
            except asyncio.CancelledError:
                with suppress(WeightsError):
                    await self._resume_generation()
                raise

    async def clear(self) -> None:
        """Make the slot as it was when the engine was started. Raises WeightsError."""
        async with self._turn:
            if not self._is_used:
                return
            await self._pause_generation()
            try:
                await self._call(CLEAR_ADAPTER, [self.slot])
                await self._reset_caches()
            finally:
                await self._resume_generation()
