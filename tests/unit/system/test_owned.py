"""A child ends with its owner, however that dies, and when it is told to."""

import asyncio
import os
import select
import signal
import subprocess
import sys

import pytest

from rl_agent.system.owned import end_owned, start_owned

PARENT = """
import asyncio, sys
from rl_agent.system.owned import start_owned
async def own():
    child = await start_owned("sleep", "60")
    print(child.pid, flush=True)
    sys.stdin.read()
asyncio.run(own())
"""


def test_a_child_of_a_parent_that_was_killed_is_ended_by_the_kernel():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert ended_within(child, 30.0)
    os.close(child)


@pytest.mark.parametrize(
    ("script", "grace_s", "status"),
    [
        ("trap 'exit 3' TERM; echo up; read -r _", 30.0, 3),
        ("trap '' TERM; echo up; read -r _", 0.0, -signal.SIGKILL),
    ],
)
async def test_a_child_that_is_told_to_end_is_killed_once_its_time_is_over(script, grace_s, status):
    pipe = asyncio.subprocess.PIPE
    child = await start_owned("bash", "-c", script, stdin=pipe, stdout=pipe)
    assert await child.stdout.readline() == b"up\n"
    await end_owned(child, grace_s)
    assert child.returncode == status


def ended_within(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])
