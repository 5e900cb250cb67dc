"""What is below a process, and that nothing of it is left."""

import os
import subprocess
import sys

from rl_agent.env.remote import process_tree
from rl_agent.env.remote.process_tree import descendants, marked, resident_bytes
from tests.unit.env.remote.pools import is_gone

SUBREAPER = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)
from rl_agent.env.remote.process_tree import end_descendants
shell = 'for i in 1 2 3; do (setsid sleep 600 & echo $! ; exec sleep 0.0$i) & done; exec sleep 0.02'
child = subprocess.Popen(['sh', '-c', shell])
assert end_descendants(20.0)
try:
    os.waitpid(-1, os.WNOHANG)
    print('some are left')
except ChildProcessError:
    print('none is left')
"""


def test_a_subreaper_ends_all_below_it_while_parents_end_on_their_own():
    for _ in range(3):
        found = subprocess.run(
            [sys.executable, "-c", SUBREAPER], capture_output=True, text=True, timeout=60, check=True
        )
        *pids, last = found.stdout.split("\n")[:-1]
        assert last == "none is left", found.stderr
        assert all(is_gone(int(pid)) for pid in pids)


def test_a_tree_is_found_with_its_memory_and_by_its_mark():
    mark = f"RL_AGENT_TEST_MARK=x{os.getpid()}"
    name, _, value = mark.partition("=")
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'input()'!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, env={**os.environ, name: value}
    ) as child:
        while len(descendants(child.pid)) < 1:
            pass
        (grandchild,) = descendants(child.pid)
        assert set(marked(mark.encode())) == {child.pid, grandchild}
        sizes = resident_bytes([child.pid, grandchild])
        assert sizes[child.pid] > sizes[grandchild] > 2**20
        child.stdin.write(b"\n")
    assert resident_bytes([child.pid]) == {child.pid: 0}


def test_a_process_without_children_has_ended_them():
    code = "from rl_agent.env.remote.process_tree import end_descendants; print(end_descendants(0.0))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"
    assert process_tree.descendants(10**9) == []
