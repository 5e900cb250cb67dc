"""The file in which a manager states its address, so that others find one that has moved.

A run writes it as `runs/latest/pool.url` and removes it at its end, `rl-agent manager --url-file` where it is
told to. Workers, trainers and `pool scale` read it from a path or by HTTP. It is a hint: they move only to an
address at which a manager answers, so a file that is old or wrong costs a question. A line without its end is
half written and states nothing.
"""

import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yarl import URL

from rl_agent.errors import RetryLater, in_one_line
from rl_agent.http import client as http_client
from rl_agent.system.worker_threads import WorkerThreads

log = logging.getLogger(__name__)
READ_TIMEOUT_S = 3.0
WAIT_S = 0.5
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


def is_manager(answer: Any) -> bool:
    """Return whether that is what a manager answers to `/status`."""
    return isinstance(answer, dict) and "engines" in answer


@dataclass(slots=True)
class ManagerFile:
    """A path, or an address that serves the file."""

    where: str
    tls_ca: Path | None = None
    """Certificates that the system does not know, of the server of the file."""
    problem: str = field(default="", init=False)
    """The reason that the last read found no address."""
    is_gone: bool = field(default=False, init=False)
    """There was no file at the last read: a run that is over has taken it away."""
    _pending: Future[str] | None = field(default=None, init=False)
    """A read of a file system that hangs: no second one is begun."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def read(self) -> str | None:
        """Return the address that the file states now, if it can be read; it blocks for seconds at most."""
        try:
            text = self._text()
        except (OSError, TimeoutError, ValueError) as error:
            self.is_gone = isinstance(error, FileNotFoundError)
            self.problem = in_one_line(error)
            return None
        self.is_gone = False
        address = address_in(text)
        self.problem = "" if address else "it is not one whole line http://HOST:PORT"
        return address

    def read_other(self, url: str) -> str | None:
        """Return the address that the file states if it is another than `url`."""
        address = self.read()
        if address is None or address == str(URL(url).origin()):
            return None
        return address

    def _text(self) -> str:
        with self._lock:
            reading = self._pending
            if reading is None:
                reading = self._pending = _THREADS.submit(_content, self.where, self.tls_ca)
        try:
            return reading.result(READ_TIMEOUT_S)
        except TimeoutError:
            if reading.done():
                raise
            raise TimeoutError("the file system does not answer") from None
        finally:
            with self._lock:
                if reading.done() and self._pending is reading:
                    self._pending = None


def _content(where: str, tls_ca: Path | None) -> str:
    content = _fetched(where, tls_ca) if "://" in where else Path(where).read_bytes()
    return content.decode()


def _fetched(where: str, tls_ca: Path | None) -> bytes:
    try:
        return http_client.request(where, timeout_s=READ_TIMEOUT_S, tls_ca=tls_ca)
    except http_client.RequestRefused as error:
        kind = FileNotFoundError if error.status in (404, 410) else ValueError
        raise kind(f"it is answered by the status {error.status}") from None


def wait_for_address(file: ManagerFile, timeout_s: float) -> str:
    """Wait until the file states an address, and return it. Raises RetryLater."""
    until, reported = time.monotonic() + timeout_s, ""
    while (address := file.read()) is None:
        if time.monotonic() >= until:
            raise RetryLater(
                f"--manager-file {file.where}: states no address after {timeout_s:g} s: {file.problem}"
            )
        if file.problem != reported:
            reported = file.problem
            log.warning("--manager-file %s: states no address yet: %s", file.where, reported)
        time.sleep(WAIT_S)
    return address
