"""Text on its way to a person: without the power to drive a terminal, and never a reason to die.

What a program prints is in part what others wrote: task ids, answers of a model, names of engines, errors of
peers. A terminal would obey the control characters in it. `guard_output` puts a stream in front of stdout and
stderr that shows them as escapes, and that goes on without a reader when the other end of a pipe is closed:
work that was begun is ended, and the process then ends as the shell has it (141).
"""

from rl_agent.interrupts import is_interrupt

import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from rl_agent.errors import HarnessError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_INTERRUPTED = 130
"""128 + SIGINT, what a shell reports of a program that Ctrl+C ended."""
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE, what a shell reports of a program that nobody reads any more."""
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
    """A text stream that outlives its reader."""

    def __init__(self, stream: TextIO, *, escapes: bool, problems: list[OSError] | None = None) -> None:
        self._stream = stream
        self._escapes = escapes
        self.problems = [] if problems is None else problems
        """The reason why nothing more is written: the reader has gone, or the disk is full."""

    def write(self, text: str) -> int:
        try:
            self._stream.write(printable(text) if self._escapes else text)
        except OSError as error:
            self._close(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._close(error)

    def _close(self, error: OSError) -> None:
        self.problems.append(error)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)

    def raw(self) -> "Output":
        """The same stream for what may hold escapes: a table's colours, a NUL between two words."""
        return Output(self._stream, escapes=False, problems=self.problems)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
    if not isinstance(stream, Output) and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return stream if isinstance(stream, Output) else Output(stream, escapes=escapes)


def is_stdout_closed() -> bool:
    """Return whether the reader of stdout has gone: who prints for ever may end."""
    sys.stdout.flush()
    return isinstance(sys.stdout, Output) and bool(sys.stdout.problems)


def clear() -> None:
    """Empty the screen of the terminal that stdout is."""
    stream: Any = sys.stdout.raw() if isinstance(sys.stdout, Output) else sys.stdout
    stream.write("\033[H\033[2J")


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` behind guarded output and end the process with what it returns; None is 0.

    A deliberate failure is one line on stderr and its exit code.
    """
    guard_output()
    end(main)


def end(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` and end the process, as `run_script` does where output is guarded already."""
    try:
        code = main()
    except SystemExit as wanted:
        if isinstance(wanted.code, str):
            sys.stderr.write(f"{wanted.code}\n")
        code = 1 if isinstance(wanted.code, str) else wanted.code
    except HarnessError as error:
        sys.stderr.write(indented(f"{Path(sys.argv[0]).name}: {error}") + "\n")
        code = error.exit_code
    except (Exception, KeyboardInterrupt) as error:
        if not is_interrupt(error):
            raise
        code = EXIT_INTERRUPTED
    sys.exit(exit_code(code or 0))


def exit_code(code: int) -> int:
    """Return what the process ends with, once all that was printed is out."""
    if not is_stdout_closed() or not isinstance(sys.stdout, Output):
        return code
    error = sys.stdout.problems[0]
    if isinstance(error, BrokenPipeError):
        return code or EXIT_BROKEN_PIPE
    sys.stderr.write(f"what was printed is not all written: {error.strerror}\n")
    return code or 1


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
            found: Iterable[ConsoleRenderable] = renderables
            return [one if isinstance(one, Control) else Printable(one) for one in found]

    stream: Any = sys.stderr if stderr else sys.stdout
    file: Any = stream.raw() if isinstance(stream, Output) else stream
    shown = Console(file=file, width=width)
    shown.push_render_hook(Hook())
    return shown
