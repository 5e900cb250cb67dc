"""The guard of a worker: `python -m rl_agent.env.remote.guard PARENT_PID FOLDER`, with a socket as its stdin.

    parent ─► guard ─► worker ─► what an environment starts: browsers, servers, shells
                └─ the worker ends, the parent ends, or the guard is told TERM: all below is killed, and the
                   worker's folder for temporary files deleted

A worker may hang, crash or be killed, and the parent may be killed; a guard does next to nothing, so it is
there to clean up. The kernel gives it whatever loses its parent below it (a subreaper), in whichever group.
"""

import ctypes
import os
import shutil
import signal
import sys

from rl_agent.env.remote.process_tree import end_descendants, reap

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
END_LIMIT_S = 5.0


def die_with_parent(parent_pid: int, sign: signal.Signals) -> None:
    """Let the kernel send this process `sign` when its parent ends; exit if that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(sign))
    if os.getppid() != parent_pid:
        os._exit(1)


def main(parent_pid: str, folder: str) -> int:
    """Start the worker, and wait until it is over; returns the worker's exit code."""
    watched = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    die_with_parent(int(parent_pid), signal.SIGTERM)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        die_with_parent(guard, signal.SIGKILL)
        from rl_agent.env.remote.worker import main as run_worker

        run_worker(folder)
        return 0
    _let_go_of_socket()
    try:
        return _wait(worker, watched)
    finally:
        end_descendants(END_LIMIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(worker: int, watched: set[signal.Signals]) -> int:
    while True:
        if signal.sigwait(watched) == signal.SIGTERM:
            return 128 + signal.SIGTERM
        ended = reap()
        if worker in ended:
            return ended[worker]


def _let_go_of_socket() -> None:
    """Only the worker keeps it, so that the parent sees its end when the worker ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
