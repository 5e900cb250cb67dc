"""Settings of a worker."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.pool.manager_file import ManagerFile
from rl_agent.worker.engine_process import EngineCommand, EngineProcess
from rl_agent.worker.engine_turns import EngineTurns
from rl_agent.worker.preemption import NoticeSource
from rl_agent.worker.shared_engine import SharedEngine


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    manager: str
    read_token: Callable[[], str | None]
    """Asked again when the manager refuses what it gave: tokens rotate."""
    name: str
    command: EngineCommand
    model: str | None
    """None: what the pool wants."""
    is_direct: bool
    """The manager connects to the engine; else the worker holds the connection."""
    capacity: int | None
    price_per_hour: float
    kind: str
    """One of the kinds that the manager asks for; empty: none."""
    manager_timeout_s: float
    """Longest wait for a manager that was never there."""
    start_timeout_s: float
    drain_s: float
    notice: NoticeSource | None
    log: Path
    weights: WeightsConfig
    address: str
    """Address at which other hosts of the pool fetch weights from this one."""
    manager_file: ManagerFile | None = None
    """States where the manager is when `manager` does not answer."""
    tls_ca: Path | None = None
    """Trusted in addition, where the manager's address is https."""
    check_model: Callable[[str], object] = lambda model: None
    """Called before an engine starts on a model. Raises StoreError if that is not as it was published."""
    shared: SharedEngine | None = None
    """The engine, where it serves other pools, too; None: the worker has its own."""
    slot: int = 0
    """The slot of a shared engine that the pool's adapter has."""
    turns: EngineTurns | None = None
    """The turns with a trainer on the same devices; None: the engine has its own."""

    async def start_engine(self, model: str) -> EngineProcess:
        """Start the worker's engine, or find it started. Raises EngineDied if it serves another model."""
        if self.shared is not None:
            return await self.shared.start(self.command, model, self.log, self.slot)
        return await EngineProcess.start(self.command, model, self.log, is_held=self.turns is not None)
