"""Text that a person reads cannot drive their terminal.

What a program prints is in part what others wrote: task ids, answers of a model, names of engines, errors of
peers. A terminal would obey the control characters in it. `guard_output` puts a stream in front of stdout and
stderr that shows them as escapes. A program whose stdout has no reader ends by SIGPIPE (141); where stdout
cannot be written, such as on a full disk, it ends with one line.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from rl_agent.errors import HarnessError
from rl_agent.system import interrupts  # noqa: F401 - first of all: what follows takes time

if TYPE_CHECKING:
    from rich.console import Console

EXIT_INTERRUPTED = 130
"""128 + SIGINT, what a shell reports of a program that Ctrl+C ended."""
_HARMLESS = frozenset("\n\t")
_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
"""They reorder what stands around them, so that a line reads as another one."""
_BREAKS = {0x2028, 0x2029}
_ESCAPES = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(0x20), *range(0x7F, 0xA0), *_BIDI, *_BREAKS, *range(0xD800, 0xE000))
    if chr(code) not in _HARMLESS
}


def printable(text: str) -> str:
    """Return `text` with control characters as escapes; its lines and tabs stay."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """Return `text` with all that is not printable, line breaks too, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def indented(text: str) -> str:
    """Return printable text, with no further line that could be taken for the program's own."""
    return printable(text).replace("\n", "\n    ")


class Output:
    """A text stream that shows control characters as escapes."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        """The stream for what may hold escapes: a table's colours."""

    def write(self, text: str) -> int:
        self.raw.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class _Record(logging.LogRecord):
    def getMessage(self) -> str:
        return indented(super().getMessage())


def guard_output(*, escapes_stdout: bool = True) -> None:
    """Guard the output, once, at the start of a process. Without `escapes_stdout` another program reads
    stdout."""
    for number in (0, 1, 2):  # a file that is opened next would else get the number of one that is closed
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _guarded(sys.stdout, 1, escapes=escapes_stdout)
    sys.stderr = _guarded(sys.stderr, 2, escapes=True)
    logging.setLogRecordFactory(_Record)


def _guarded(stream: TextIO | None, number: int, *, escapes: bool) -> Any:
    stream = stream or os.fdopen(number, "w", closefd=False)
    if isinstance(stream, Output):
        return stream
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return Output(stream) if escapes else stream


def clear() -> None:
    """Empty the screen of the terminal that stdout is."""
    _raw(sys.stdout).write("\033[H\033[2J")


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` behind guarded output and end the process with what it returns; None is 0.

    A deliberate failure is one line on stderr and its exit code.
    """
    guard_output()
    end(main)


def end(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` and end the process, as `run_script` does where output is guarded already."""
    try:
        code = _status_of(main)
        sys.stdout.flush()
    except OSError:
        _end_if_stdout_failed()
        raise
    sys.exit(code)


def _end_if_stdout_failed() -> None:
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes stdout once more at its end
        sys.stderr.write(f"stdout: {error.strerror}\n")
        sys.exit(1)


def _status_of(main: Callable[[], int | None]) -> int:
    try:
        return main() or 0
    except SystemExit as wanted:
        if isinstance(wanted.code, str):
            sys.stderr.write(f"{wanted.code}\n")
            return 1
        return wanted.code or 0
    except HarnessError as error:
        sys.stderr.write(indented(f"{Path(sys.argv[0]).name}: {error}") + "\n")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def console(*, stderr: bool = False, width: int | None = None) -> "Console":
    """Rich's console; what is printed with it cannot drive the terminal, its colours can."""
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
    from rich.control import Control
    from rich.segment import Segment

    class Printable:
        def __init__(self, shown: ConsoleRenderable) -> None:
            self._shown = shown

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for text, style, control in console.render(self._shown, options):
                yield Segment(text if control else printable(text), style, control)

    class Hook(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            parts: Iterable[ConsoleRenderable] = renderables
            return [part if isinstance(part, Control) else Printable(part) for part in parts]

    shown = Console(file=_raw(sys.stderr if stderr else sys.stdout), width=width)
    shown.push_render_hook(Hook())
    return shown


def _raw(stream: Any) -> TextIO:
    return stream.raw if isinstance(stream, Output) else stream
