"""Turns of a trainer and an engine when the number of a dead process is a stranger's by now."""

import dataclasses
import json
import os

import pytest

from rl_agent.pool.gpu_turns import EngineTurnState, GpuTurn, TrainerTurns, TurnFiles
from rl_agent.system.processes import ProcessId

ALIVE = ProcessId.of(os.getpid())
REUSED = dataclasses.replace(ALIVE, start_ticks=ALIVE.start_ticks - 1)
"""A process that has ended; its number is now that of a process that lives."""


@pytest.fixture
def files(tmp_path):
    return TurnFiles(tmp_path / "turn.json")


@pytest.mark.parametrize("worker", [REUSED, ProcessId(2**22 + 1, 1)], ids=["stranger", "nobody"])
def test_neither_no_worker_nor_a_dead_one_is_waited_for(files, worker):
    TrainerTurns(files, timeout_s=0.0).take()
    files.write_engine(EngineTurnState(1, is_awake=True, has_served=True, worker=worker))
    assert files.read_engine() is None
    TrainerTurns(files, timeout_s=0.0).take()
    files.write_engine(EngineTurnState(2, is_awake=True, has_served=True, worker=ALIVE))
    assert files.read_engine() is not None


def test_what_another_release_wrote_counts_as_nothing(files):
    files.turn.write_text(json.dumps({"number": 3, "is_engines": False, "trainer": os.getpid()}))
    assert files.read_turn() is None
    TrainerTurns(files, timeout_s=0.0).give()
    assert files.read_turn() == GpuTurn(1, is_engines=True, trainer=ALIVE)
