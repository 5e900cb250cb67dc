"""The engine's side of GPU sharing."""

import asyncio
import dataclasses
import os

import pytest

from rl_agent.pool.gpu_turns import GpuTurn, TurnFiles
from rl_agent.system.processes import ProcessId
from rl_agent.worker.engine_turns import EngineTurns

ALIVE = ProcessId.of(os.getpid())


REUSED = dataclasses.replace(ALIVE, start_ticks=ALIVE.start_ticks - 1)
"""A process that has ended; its number is now that of a process that lives."""


@pytest.fixture
def files(tmp_path):
    return TurnFiles(tmp_path / "turn.json")


@pytest.mark.parametrize(("trainer", "is_engines"), [(ALIVE, False), (REUSED, True)], ids=["alive", "reused"])
async def test_reused_pid_of_a_dead_trainer_does_not_keep_the_engine_asleep(files, trainer, is_engines):
    files.write_turn(GpuTurn(7, is_engines=False, trainer=trainer))
    leaving = asyncio.Event()
    begun = asyncio.create_task(EngineTurns(files).begin(leaving))
    await asyncio.sleep(0)
    assert begun.done() == is_engines
    leaving.set()
    await begun
    assert files.read_engine().is_awake == is_engines
