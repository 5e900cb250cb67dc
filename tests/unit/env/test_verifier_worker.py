"""The worker that scores answers evaluates no code and ends with its parent."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_agent.env.safe_eval import eval_literal, only_mathematics
from rl_agent.env.verifier_worker import answer_request


@pytest.mark.parametrize("text", ["[1, [2]]", "(1, 'a')", "-2 ** 3", "0x1f & ~3", "7 // 2 % 2"])
def test_literals_and_their_arithmetic_are_evaluated(text):
    assert eval_literal(text) == eval(text)


@pytest.mark.parametrize(
    "text", ["open", "f()", "().__class__", "[x for x in ()]", "lambda: 1", "1 if 1 else 2"]
)
def test_anything_that_is_not_a_literal_is_refused(text):
    with pytest.raises(ValueError, match="not part of a literal"):
        eval_literal(text)


@pytest.mark.parametrize("text", ["2*x + C", "sin(x)**2", "1.5*3", "2.*x", "exp(-y)/sqrt(2)", "3 . 4"])
def test_mathematics_reaches_sympy(text):
    assert only_mathematics(lambda text: text)(text) == text


@pytest.mark.parametrize(
    "text", ["open(1)", "print(7)", "x.args", "(1).real", "__import__", "exec(chr(65))", "e('1')", "1 .real"]
)
def test_anything_that_is_not_mathematics_does_not_reach_sympy(text):
    with pytest.raises(ValueError, match="not a mathematical expression"):
        only_mathematics(lambda text: text)(text)


def test_an_answer_that_breaks_the_verifier_scores_zero_unlike_a_bad_task():
    def fussy(answer, request):
        if answer != "good":
            raise RecursionError("deep")
        return 1.0

    assert answer_request(fussy, {"response": "odd", "answer": "good"}) == {"score": 0.0}
    assert answer_request(fussy, {"response": "odd", "answer": "odd"}) == {"error": "RecursionError: deep"}


def test_a_score_that_is_no_number_is_zero():
    request = {"response": "1", "answer": "1"}

    assert answer_request(lambda *_: float("nan"), request) == {"score": 0.0}


PARENT = """
import asyncio, signal
from rl_agent.env import verifier

async def main():
    pool = verifier.shared_pool("math", 1)
    alone = {"is_boxed": True, "is_tagged": False, "expressions": False}
    await pool.score({"response": "1", "answer": "1"} | alone, 60)
    print(pool._idle[0].process.pid, flush=True)
    await pool.score({"response": "9^{9^{9^{9}}}", "answer": "7x"} | alone, 60)

asyncio.run(main())
"""


def test_a_computing_worker_dies_with_a_killed_parent(request):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=request.config.rootpath
    )
    with parent:
        assert parent.stdout
        worker_pid = int(parent.stdout.readline())
        assert state_becomes(worker_pid, "R"), "the worker never computed"
        assert {signal.SIGINT, signal.SIGTERM} <= ignored_by(worker_pid), "the parent decides when it ends"
        parent.kill()
    assert state_becomes(worker_pid, "gone")


def state_becomes(pid, wanted):
    deadline = time.monotonic() + 10
    while state_of(pid) != wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def ignored_by(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def state_of(pid):
    """The kernel's letter for a process; "gone" for one that has ended."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return "gone"
    return "gone" if letter == "Z" else letter


def test_a_worker_whose_questioner_hangs_up_ends_without_a_traceback():
    here, there = socket.socketpair()
    command = [sys.executable, "-m", "rl_agent.env.verifier_worker", "math", str(os.getpid())]
    worker = subprocess.Popen(command, stdin=there, stderr=subprocess.PIPE)
    there.close()
    assert here.recv(100), "it is ready"
    here.sendall(b"{}\n")
    select.select([here], [], [])
    here.close()  # with the answer unread
    assert worker.communicate(timeout=30) == (None, b"")
    assert worker.returncode == 0
