"""GPU sharing: a trainer and an engine take turns, by two small files.

    turn.json         the trainer: whose turn it is, numbered
    turn.engine.json  the engine's worker: the number it follows, and whether its engine may use the GPUs

What holds: the trainer goes on only once the worker has said, to this very number, that its engine rests,
or there is no worker. A worker says that its engine wakes before it reads once more whose turn it is; so
either it sees that its turn is over, or the trainer sees the engine awake. A trainer that is dead uses no
GPU: then it is the engine's turn, whatever the file says. Both are named by process number and start time,
so a stranger that got the number of a dead one is not taken for it.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from rl_agent.errors import DeadlineError
from rl_agent.system.files import write_whole
from rl_agent.system.processes import ProcessId

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class GpuTurn:
    number: int
    is_engines: bool
    trainer: ProcessId


@dataclass(frozen=True, slots=True)
class EngineTurnState:
    number: int
    """The number of the turn that this follows."""
    is_awake: bool
    has_served: bool
    """It has been ready once: from then on it only rests between its turns."""
    worker: ProcessId


T = TypeVar("T", GpuTurn, EngineTurnState)


def _read(path: Path, kind: type[T]) -> T | None:
    """Read a file; None also if another release wrote it, whose processes have ended."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


@dataclass(frozen=True, slots=True)
class TurnFiles:
    turn: Path

    @property
    def _engine(self) -> Path:
        return self.turn.with_suffix(".engine.json")

    def read_turn(self) -> GpuTurn | None:
        return _read(self.turn, GpuTurn)

    def write_turn(self, turn: GpuTurn) -> None:
        write_whole(self.turn, json.dumps(asdict(turn)), is_durable=False)

    def read_engine(self) -> EngineTurnState | None:
        """Return the engine's state; None if no living worker wrote it."""
        state = _read(self._engine, EngineTurnState)
        return state if state is not None and state.worker.is_running else None

    def write_engine(self, state: EngineTurnState) -> None:
        write_whole(self._engine, json.dumps(asdict(state)), is_durable=False)


class TrainerTurns:
    """The trainer's side of GPU sharing."""

    def __init__(self, files: TurnFiles, *, timeout_s: float) -> None:
        self._files = files
        self._timeout_s = timeout_s

    def give(self) -> None:
        """Begin the engine's turn."""
        self._next(is_engines=True)

    def take(self) -> None:
        """Begin the trainer's turn; return once the engine rests. Raises DeadlineError."""
        number = self._next(is_engines=False)
        deadline = time.monotonic() + self._timeout_s
        while (state := self._files.read_engine()) is not None and (state.is_awake or state.number < number):
            if time.monotonic() >= deadline:
                worker = state.worker.pid
                raise DeadlineError(
                    f"the engine of worker process {worker} did not give the devices back within"
                    f" {self._timeout_s:g} s (engine.start_timeout_s)"
                )
            time.sleep(POLL_S)

    def _next(self, *, is_engines: bool) -> int:
        before = self._files.read_turn()
        number = 1 if before is None else before.number + 1
        self._files.write_turn(GpuTurn(number, is_engines, ProcessId.of(os.getpid())))
        return number
