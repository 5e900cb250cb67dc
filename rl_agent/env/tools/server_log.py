"""Passes on what a server of tools writes to its standard error, at a bounded rate.

A server is not trusted, and a log on a disk is. So many bytes may come at once, and so many a second after
that; what is more is read, so that the server goes on, and left out. The log says so once.
"""

import asyncio
import sys
import time
from collections.abc import Callable

from rl_agent.system.terminal import one_line

AT_ONCE_BYTES = 64 << 10
BYTES_A_SECOND = 1 << 10
LONGEST_LINE = 1000
_READ_BYTES = 16 << 10


class ServerLog:
    """The lines of one server; `take` is given them in pieces as they come."""

    def __init__(
        self,
        name: str,
        write: Callable[[str], object] = lambda line: sys.stderr.write(line),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._write = write
        self._clock = clock
        self._room = float(AT_ONCE_BYTES)
        self._filled_at = clock()
        self._begun = b""
        self._leaves_out = False
        self._is_cut = False
        """The rest of a line that was too long is still to come."""

    async def read(self, stderr: asyncio.StreamReader) -> None:
        """Pass on lines until the server closes its standard error."""
        while piece := await stderr.read(_READ_BYTES):
            self.take(piece)
            await asyncio.sleep(0)  # what has arrived is read without letting others run
        self._end_line()

    def take(self, piece: bytes) -> None:
        *whole, begun = (self._begun + piece).split(b"\n")
        for self._begun in whole:
            self._end_line()
        self._begun = begun
        if len(begun) > LONGEST_LINE:
            self._end_line()
            self._is_cut = True

    def _end_line(self) -> None:
        line, self._begun = self._begun, b""
        is_rest, self._is_cut = self._is_cut, False
        if is_rest or not line:
            return
        text = one_line(line[:LONGEST_LINE].decode(errors="replace"))
        now = self._clock()
        self._room = min(AT_ONCE_BYTES, self._room + (now - self._filled_at) * BYTES_A_SECOND)
        self._filled_at = now
        if len(text) <= self._room:
            self._room -= len(text)
            self._write(f"{text}{'…' if len(line) > LONGEST_LINE else ''}\n")
        elif not self._leaves_out:
            self._leaves_out = True
            self._write(
                f"{self._name} writes more than {BYTES_A_SECOND:,} bytes per second to its standard error;"
                " lines are left out\n"
            )
