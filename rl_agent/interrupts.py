"""Ctrl+C ends a program without a traceback, even while the program is still being loaded.

Importing this module is what does that, so a program imports it before anything that takes time. It imports
nothing but `sys`.
"""

import sys
from types import TracebackType

_show = sys.excepthook


def _show_what_is_no_interrupt(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Python then ends by the signal itself, which a shell reports as 130."""
    if not is_interrupt(error):
        _show(kind, error, trace)
    elif not isinstance(error, KeyboardInterrupt):  # Python would end with 1, and nothing said
        import os
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def is_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl+C was the reason; an extension that is being loaded raises an error about it."""
    return isinstance(error, KeyboardInterrupt) or "\n  KeyboardInterrupt: " in f"{error}"


sys.excepthook = _show_what_is_no_interrupt
