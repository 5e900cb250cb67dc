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
    """Return whether Ctrl+C was the reason; pydantic, where it is interrupted, raises an error about it."""
    if isinstance(error, KeyboardInterrupt):
        return True
    text = f"{error}"
    return text.startswith('Error building "') and text.rstrip().endswith("\n  KeyboardInterrupt:")


sys.excepthook = _show_what_is_no_interrupt
