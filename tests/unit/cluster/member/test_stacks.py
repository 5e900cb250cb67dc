"""The stacks of a node process, also of one that hangs."""

import dataclasses
import signal
import subprocess
import sys

import pytest

from rl_agent.cluster.member import stacks
from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.processes import ProcessId
from tests.support.cluster.members import until
from tests.unit.cluster.cluster_states import record

SLEEPER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from rl_agent.cluster.member import stacks
def where_it_hangs():
    print(stacks.register(Path(sys.argv[2]), "inc"), flush=True)
    time.sleep(60)
where_it_hangs()
"""


@pytest.fixture
def sleeper(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(PROJECT_ROOT), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    path = process.stdout.readline().strip()
    said = {"process": ProcessId.of(process.pid), "stacks": path}
    yield process, record("inc", 1, **said)
    process.kill()
    process.communicate()


def test_a_node_process_shows_where_it_hangs(sleeper):
    _, said = sleeper
    assert "where_it_hangs" in stacks.collect(said)
    assert stacks.collect(said).count("where_it_hangs") == 1


def test_a_stopped_or_replaced_process_gets_no_signal_that_kills_it(sleeper, monkeypatch):
    process, said = sleeper
    monkeypatch.setattr(stacks, "_ANSWER_S", 0.2)
    process.send_signal(signal.SIGSTOP)
    until(lambda: said.process.is_stopped, "it is not stopped")
    assert "stopped" in stacks.collect(said)
    process.send_signal(signal.SIGCONT)
    of_before = dataclasses.replace(said.process, start_ticks=said.process.start_ticks + 1)
    other = said.model_copy(update={"process": of_before})
    assert "is gone" in stacks.collect(other)
    assert "writes no stacks" in stacks.collect(said.model_copy(update={"stacks": None}))
    assert process.poll() is None
