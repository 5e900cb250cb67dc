"""The file in which a manager states its address, so that workers find one that has moved.

A run writes it as `runs/latest/pool.url`, `rl-agent manager --url-file` where it is told to. It is read from
a path or by HTTP. It is a hint: a worker moves only to an address at which a manager answers, so a file that
is old, wrong or half-written costs a question.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
from yarl import URL

from rl_agent.errors import RetryLater

log = logging.getLogger(__name__)
READ_TIMEOUT_S = 3.0
WAIT_S = 0.5
MAX_BYTES = 4096


def address_in(text: str) -> str | None:
    """Return the address that a file states as its only line; None if it states none."""
    line = text.strip()
    if not line.isprintable():
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
    _pending: "asyncio.Future[str] | None" = field(default=None, init=False)
    """A read of a file system that hangs: no second one is begun."""

    async def read(self, session: aiohttp.ClientSession) -> str | None:
        """Return the address that the file states now, if it can be read."""
        try:
            text = await (self._fetch(session) if "://" in self.where else self._read_path())
        except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.debug("%s: %r", self.where, error)
            return None
        return address_in(text)

    async def _fetch(self, session: aiohttp.ClientSession) -> str:
        timeout = aiohttp.ClientTimeout(total=READ_TIMEOUT_S)
        async with session.get(self.where, timeout=timeout) as answer:
            answer.raise_for_status()
            return (await answer.content.read(MAX_BYTES)).decode()

    async def _read_path(self) -> str:
        if self._pending is None:
            loop = asyncio.get_running_loop()
            self._pending = loop.run_in_executor(None, _beginning, Path(self.where))
        reading = self._pending
        done, _ = await asyncio.wait([reading], timeout=READ_TIMEOUT_S)
        if not done:
            raise TimeoutError("the file system does not answer")
        if self._pending is reading:
            self._pending = None
        return reading.result()


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_BYTES).decode()


async def wait_for_address(file: ManagerFile, timeout_s: float) -> str:
    """Wait until the file states an address, and return it. Raises RetryLater."""
    until = monotonic() + timeout_s
    async with aiohttp.ClientSession() as session:
        while (found := await file.read(session)) is None:
            if monotonic() >= until:
                raise RetryLater(f"--manager-file {file.where}: states no address after {timeout_s:g} s")
            await asyncio.sleep(WAIT_S)
    return found
