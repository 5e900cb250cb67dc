"""The file in which a manager states its address, so that workers find one that has moved.

A run writes it as `runs/latest/pool.url`, `rl-agent manager --url-file` where it is told to. It is read from
a path or by HTTP. It is a hint: a worker moves only to an address at which a manager answers, so a file that
is old or wrong costs a question. That question carries the token: who may write the file can have it. A line
without its end is half written and states nothing.
"""

import asyncio
import logging
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
from yarl import URL

from rl_agent.errors import RetryLater
from rl_agent.worker_threads import WorkerThreads

log = logging.getLogger(__name__)
READ_TIMEOUT_S = 3.0
WAIT_S = 0.5
MAX_BYTES = 4096
_THREADS = WorkerThreads(4, name="manager file")
"""A file system that hangs does not hold up the exit."""


def address_in(text: str) -> str | None:
    """Return the address that a file states as its only line; None if it states none, or half of one."""
    line = text.strip()
    if not line.isprintable() or not text.endswith("\n"):
        return None
    try:
        url = URL(line)
        return str(url.origin()) if url.scheme in ("http", "https") and url.host and url.port else None
    except ValueError:
        return None


@dataclass(slots=True)
class ManagerFile:
    """A path, or an address that serves the file."""

    where: str
    problem: str = field(default="", init=False)
    """Why the last read found no address."""
    _pending: "asyncio.Future[str] | None" = field(default=None, init=False)
    """A read of a file system that hangs: no second one is begun."""

    async def read(self, session: aiohttp.ClientSession) -> str | None:
        """Return the address that the file states now, if it can be read."""
        try:
            text = await (self._fetch(session) if "://" in self.where else self._read_path())
        except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.problem = " ".join(str(error).split())[:200] or type(error).__name__
            return None
        found = address_in(text)
        self.problem = "" if found else "it is not one whole line http://HOST:PORT"
        return found

    async def _fetch(self, session: aiohttp.ClientSession) -> str:
        timeout = aiohttp.ClientTimeout(total=READ_TIMEOUT_S)
        async with session.get(self.where, timeout=timeout, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ValueError(f"it is answered by the status {answer.status}")
            content = b""
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > MAX_BYTES:
                    raise ValueError("it is too long")
            return content.decode()

    async def _read_path(self) -> str:
        if self._pending is None:
            loop = asyncio.get_running_loop()
            self._pending = loop.run_in_executor(_THREADS, _content, Path(self.where))
        reading = self._pending
        done, _ = await asyncio.wait([reading], timeout=READ_TIMEOUT_S)
        if not done:
            raise TimeoutError("the file system does not answer")
        if self._pending is reading:
            self._pending = None
        return reading.result()


def _content(path: Path) -> str:
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # a FIFO does not wait for its writer
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("it is too long")
    return content.decode()


async def wait_for_address(file: ManagerFile, timeout_s: float) -> str:
    """Wait until the file states an address, and return it. Raises RetryLater."""
    until, reported = monotonic() + timeout_s, ""
    async with aiohttp.ClientSession() as session:
        while (found := await file.read(session)) is None:
            if monotonic() >= until:
                raise RetryLater(
                    f"--manager-file {file.where}: states no address after {timeout_s:g} s: {file.problem}"
                )
            if file.problem != reported:
                reported = file.problem
                log.warning("--manager-file %s: states no address yet: %s", file.where, reported)
            await asyncio.sleep(WAIT_S)
    return found
