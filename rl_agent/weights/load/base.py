"""Loads a version that is on this host into a running server, whatever the kind of engine.

    verify the bytes ─► prepare ─► pause ─► load, drop caches ─► resume
      (while it generates)           │            │ fails
                                     │            ▼
                                     └── load the version before ─► resume; what failed is raised

Requests that were running go on with the tokens they have. The server never resumes with weights of two
versions: when neither version can be loaded it stays paused, and `TornEngine` says so. The routes of each
kind of engine are beside this, in `vllm_load` and `sglang_load`.
"""

import asyncio
import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rl_agent.errors import WeightsError
from rl_agent.weights.format.checksums import wrong_pieces
from rl_agent.weights.sources.source import one_line
from rl_agent.weights.store.store import FULL, DamagedVersion, Snapshot, Stamp

_MOST_THREADS = 16
LOAD_TIMEOUT_S = 300.0
"""The time of one call to an engine while it takes new weights: also for the largest from a slow disk."""


class TornEngine(WeightsError):
    """The server is paused and holds no version. It has to be started again."""


class NoAnswer(WeightsError):
    """The server did not answer: whether it did what it was asked for is unknown."""


class NotLoaded(WeightsError):
    """The server may hold a part of a version."""


class LoadRefused(WeightsError):
    """The server refused a version and still holds what it held."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A summary of how a version was loaded."""

    weight_version: int
    pause_s: float
    """Time in which the server gave no token."""
    load_s: float
    """The slowest worker's part of that."""


@dataclass(frozen=True, slots=True)
class VerifiedVersion:
    """A version that is ready to be loaded."""

    snapshot: Snapshot
    stamp: Stamp | None = None
    """The stamp of the bytes that were verified; None: of the version before, which was verified when it was
    loaded."""
    folder: Path | None = None
    """A folder with the same weights, for an engine that loads those: a model's, or an adapter's."""


@asynccontextmanager
async def folder_version(
    snapshot: Snapshot, stamp: Stamp | None, folder: AbstractContextManager[Path]
) -> AsyncIterator[VerifiedVersion]:
    """Keep the folder of a version, which `folder` writes, while the block runs; written by a thread.

    Raises what `folder` does, and DamagedVersion if the bytes changed since they had the stamp.
    """
    stack = contextlib.ExitStack()
    writing = asyncio.get_running_loop().run_in_executor(None, stack.enter_context, folder)
    try:
        written = await asyncio.shield(writing)
        if stamp is not None:
            snapshot.check_unchanged(stamp)  # the folder holds a copy
        yield VerifiedVersion(snapshot, stamp, written)
    finally:
        await asyncio.wait([writing])  # a thread that is cancelled goes on
        await asyncio.to_thread(stack.close)


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


class RunningServer(ABC):
    """The routes of one server that concern weights; it listens on this host."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, timeout_s: float = LOAD_TIMEOUT_S
    ) -> None:
        self._url = url.rstrip("/")
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def load(
        self,
        snapshot: Snapshot,
        *,
        previous: Snapshot | None,
        on_loaded: Callable[[], Awaitable[None]] | None = None,
    ) -> LoadReport:
        """Serve `snapshot`. If that fails the server serves `previous` again, and WeightsError says why.

        `on_loaded` is called once it is loaded and before the first token is made with it.
        Whoever cancels this leaves the server paused; the next load goes on from there.
        """
        stamp = await asyncio.to_thread(verify, snapshot)
        try:
            async with self._prepared(snapshot, stamp) as version:
                began = time.monotonic()
                await self._pause()
                try:
                    load_s = await self._load(version)
                except LoadRefused as error:
                    await self._go_on(str(error))
                    raise
                if on_loaded is not None:
                    await on_loaded()
                await self._go_on(f"holds version {snapshot.weight_version}")
                return LoadReport(snapshot.weight_version, time.monotonic() - began, load_s)
        except NotLoaded as error:
            await self._go_back(previous, error)
            raise

    @asynccontextmanager
    async def _prepared(self, snapshot: Snapshot, stamp: Stamp | None) -> AsyncIterator[VerifiedVersion]:
        """Prepare a version while the server generates."""
        yield VerifiedVersion(snapshot, stamp)

    @abstractmethod
    async def _pause_generation(self) -> None: ...

    @abstractmethod
    async def _resume_generation(self) -> None: ...

    @abstractmethod
    async def _load(self, version: VerifiedVersion) -> float:
        """Load a version into the paused server and drop its caches; returns the slowest worker's seconds.

        Raises LoadRefused if it has refused it, TornEngine if nobody knows what it holds, else NotLoaded.
        """

    async def _pause(self) -> None:
        try:
            await self._pause_generation()
        except WeightsError:
            with contextlib.suppress(WeightsError):  # it may be paused although its answer did not come
                await self._resume_generation()
            raise

    async def _go_on(self, what: str) -> None:
        try:
            await self._resume_generation()
        except WeightsError as error:
            raise TornEngine(f"{self._url}: {what} and does not go on: {error}") from error

    async def _go_back(self, previous: Snapshot | None, why: NotLoaded) -> None:
        if previous is None:
            raise TornEngine(f"{self._url}: {why}; there is no earlier version to go back to") from why
        try:
            async with self._prepared(previous, None) as version:
                await self._load(version)
            await self._resume_generation()
        except WeightsError as error:
            raise TornEngine(f"{self._url}: {why}; going back failed as well: {error}") from error

    async def _ask(
        self,
        route: str,
        query: dict[str, str] | None = None,
        *,
        method: str = "POST",
        body: dict[str, Any] | None = None,
        may_be_missing: bool = False,
    ) -> Any:
        """Return the JSON that a route answers, None if nothing. Raises WeightsError if it fails."""
        try:
            # A connection each: after an error the server closes the one it came on, and the next request,
            # which must not be sent twice, would meet the closing.
            async with self._session.request(
                method,
                self._url + route,
                params=query,
                json=body,
                timeout=self._timeout,
                headers={"Connection": "close"},
            ) as response:
                text = await response.text()
                if response.status == 404 and may_be_missing:
                    return None
                if response.status != 200:
                    raise WeightsError(f"{self._url}{route}: status {response.status}: {one_line(text, 500)}")
                return await response.json() if text else None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoAnswer(f"{self._url}{route}: {error or type(error).__name__}") from error
