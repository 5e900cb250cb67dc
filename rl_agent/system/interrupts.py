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
    if not isinstance(error, KeyboardInterrupt):
        _show(kind, error, trace)


sys.excepthook = _show_what_is_no_interrupt
