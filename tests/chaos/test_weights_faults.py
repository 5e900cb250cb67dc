"""Whatever happens to a transfer, what is served stays right, and the next try succeeds.

RL_AGENT_WEIGHTS_FAULTS=260 makes so many runs instead of those in the middle of a transfer, from
RL_AGENT_WEIGHTS_FAULTS_FROM on. `python -m tests.chaos.weights_faults` makes 260 and counts what happened.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.processes import stat_of
from rl_agent.weights.connection.deadline import Deadline
from tests.chaos.weights_faults import CELLS, FAULTS, POINTS, Case, Stage, run_in_a_folder

pytestmark = [pytest.mark.extended, pytest.mark.chaos, pytest.mark.timeout(120)]

MIDDLE = range(POINTS.index(0.5), 2 * CELLS, len(POINTS))
FIRST = int(os.environ.get("RL_AGENT_WEIGHTS_FAULTS_FROM", "0"))
COUNT = int(os.environ.get("RL_AGENT_WEIGHTS_FAULTS", "0"))
ON_DISK = 2 * CELLS


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return Stage(tmp_path_factory.mktemp("sender"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT) if COUNT else MIDDLE)
def test_a_fault_is_got_over_or_told_and_nothing_wrong_is_served(stage, seed):
    assert run_in_a_folder(stage, seed).looks > 0


def test_the_seeds_of_a_campaign_cover_every_fault_at_every_point():
    cases = [Case.of(seed) for seed in range(4 * CELLS)]
    ways = {(case.fault, case.point, case.by_delta, case.in_memory) for case in cases}
    assert len(ways) == 4 * len(FAULTS) * len(POINTS) == len(cases)


PARENT = """
import sys
from tests.chaos.weights_faults import other_process

with other_process("--send", sys.argv[1]) as sender:
    print(sender.pid, sender.stdout.readline(), flush=True)
    sender.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_of_a_campaign_ends_with_it(tmp_path, number):
    command = [sys.executable, "-c", PARENT, tmp_path]
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline().split()[0])
        parent.send_signal(number)
    deadline = Deadline.after(30)
    while (stat := stat_of(pid)) is not None and stat.state not in "ZX":
        time.sleep(deadline.remaining_s(at_most=0.05))


def test_a_campaign_that_is_told_to_end_leaves_no_folder(tmp_path):
    command = [sys.executable, "-m", "tests.chaos.weights_faults", "--seed", str(ON_DISK)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=PROJECT_ROOT, env=environment) as campaign:
        deadline = Deadline.after(60)
        while not any(tmp_path.glob("weights-faults-*")):
            time.sleep(deadline.remaining_s(at_most=0.05))
        campaign.terminate()
    assert campaign.returncode == 143
    assert not any(tmp_path.iterdir())
