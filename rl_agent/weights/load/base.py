"""Defines what it takes to load weights into a running server, whatever the kind of engine.

The server of each kind is beside this, `vllm_load` and `sglang_load`: it is paused for a version that was
verified, and resumes with one version whole or not at all.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from rl_agent.errors import WeightsError
from rl_agent.weights.format.checksums import wrong_pieces
from rl_agent.weights.sources.source import one_line
from rl_agent.weights.store.store import FULL, DamagedVersion, Snapshot, Stamp

_MOST_THREADS = 4


class TornEngine(WeightsError):
    """The server is paused and holds no version. It has to be started again."""


class NoAnswer(WeightsError):
    """The server did not answer: whether it did what it was asked for is unknown."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    weight_version: int
    pause_s: float
    """Time in which the server gave no token."""
    load_s: float
    """The slowest worker's part of that."""
    fingerprints: tuple[str, ...]
    """Of the parameters of each worker, where it tells; engines alike at the same version have the same."""


class RunningServer(Protocol):
    async def load(
        self,
        snapshot: Snapshot,
        *,
        previous: Snapshot | None,
        on_loaded: Callable[[], Awaitable[None]] | None = None,
    ) -> LoadReport:
        """Serve `snapshot`. If that fails the server serves `previous` again, and WeightsError says why.

        `on_loaded` is called once it is loaded and before the first token is made with it.
        Whoever cancels this leaves the server paused.
        """
        ...


def verify(snapshot: Snapshot) -> Stamp:
    """Check a version's bytes; returns their stamp, which stays the same while they do.

    Raises DamagedVersion if a piece of it is not what its manifest says.
    """
    full = snapshot.manifest.full
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    try:
        stamp = snapshot.stamp()
        content = snapshot.map(FULL)
    except OSError as error:
        raise DamagedVersion(f"{snapshot.folder}: cannot be read: {error.strerror}") from error
    if len(content) != full.size_bytes:
        raise DamagedVersion(f"{snapshot.folder}: has {len(content)} of {full.size_bytes} bytes")
    wrong = wrong_pieces(content, full.piece_bytes, full.digests, threads=threads)
    if wrong:
        raise DamagedVersion(f"{snapshot.folder}: {len(wrong)} pieces differ from their digests")
    snapshot.check_unchanged(stamp)
    return stamp


class Routes:
    """HTTP client for the routes of one server that concern weights; it listens on this host."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def get(self, route: str) -> Any:
        return await self._ask("GET", route)

    async def post(
        self,
        route: str,
        query: dict[str, str] | None = None,
        *,
        body: dict[str, Any] | None = None,
        may_be_missing: bool = False,
    ) -> Any:
        return await self._ask("POST", route, query, body, may_be_missing=may_be_missing)

    async def _ask(
        self,
        method: str,
        route: str,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        *,
        may_be_missing: bool = False,
    ) -> Any:
        """The JSON that a route answers, None if it answers nothing. Raises WeightsError if it fails."""
        try:
            # A connection each: after an error the server closes the one it came on, and the next request,
            # which must not be sent twice, would meet the closing.
            async with self._session.request(
                method,
                self.url + route,
                params=query,
                json=body,
                timeout=self._timeout,
                headers={"Connection": "close"},
            ) as response:
                text = await response.text()
                if response.status == 404 and may_be_missing:
                    return None
                if response.status != 200:
                    raise WeightsError(f"{self.url}{route}: status {response.status}: {one_line(text, 500)}")
                return await response.json() if text else None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoAnswer(f"{self.url}{route}: {error or type(error).__name__}") from error
