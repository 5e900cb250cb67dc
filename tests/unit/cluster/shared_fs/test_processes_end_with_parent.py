"""A process ends with its parent, however that dies."""

import os
import select
import signal
import subprocess
import sys

PARENT = """
import subprocess, sys
from functools import partial
from signal import SIGTERM
from rl_agent.cluster.shared_fs.processes import end_with_parent
die = partial(end_with_parent, SIGTERM)
child = subprocess.Popen(["sleep", "60"], preexec_fn=die, start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_of_a_parent_that_was_killed_is_ended_by_the_kernel():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert ended_within(child, 30.0)
    os.close(child)


def ended_within(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])
