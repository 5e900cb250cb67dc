"""Ends a process with its parent, however that dies: the kernel sends the signal (Linux)."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent(number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent dies; safe between fork and exec.

    A parent that died before is not noticed: who can wait for that compares `os.getppid()` afterwards.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
