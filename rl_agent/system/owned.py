"""Child processes that this process owns: each leads a process group and ends with its owner.

In bash `guard.sh` does this. `env.guard` is for a command whose descendants may leave its group.
"""

import asyncio
import ctypes
import os
import signal
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def end_with_parent(number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent dies, if that has not happened yet."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


async def start_owned(
    *words: str, orphan_signal: signal.Signals = signal.SIGKILL, **how: Any
) -> asyncio.subprocess.Process:
    """Start a command that gets `orphan_signal` if its owner dies; `how` goes to asyncio. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *words, start_new_session=True, preexec_fn=lambda: end_with_parent(orphan_signal), **how
    )


async def end_owned(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """Send TERM to the group, and KILL what is left of it once its leader ended or time is over."""
    _signal_group(process, signal.SIGTERM)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await process.wait()
    finally:  # also where this call is cancelled
        _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
