"""Keeps the weights of one engine up to date: downloads and loads the versions that the pool wants.

    beat's answer ─► wanted ─► fetched, beside the engine (─► waits for its turn)
                       ▲                │                  ─► paused, loaded, verified ─► said ─► resumed
                       │                │ fails: the old version goes on, tried again after a pause
                       └────────────────┘ a newer one is wanted: the fetch of a useless one is ended

A version that the trainer still takes tokens of is fetched to its end: else an engine whose link is slower
than the trainer would begin each version and serve none. Where responses are to be of one version, what is
fetched waits until the manager reports that the engine has finished its requests (`single_version`). The
manager knows of a version before the engine resumes with it, so that no token is marked with the one before.
An engine that has no whole version left is dropped: `run` returns why.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.pool.schemas import WeightsOffer
from rl_agent.weights.load.base import LoadReport, RunningServer, TornEngine
from rl_agent.weights.store.store import DamagedVersion, Snapshot
from rl_agent.worker.weight_cache import HostWeights

log = logging.getLogger(__name__)
LONGEST_PAUSE_S = 30.0
REPORT_S = 1.0


class EngineWeights:
    """The weights of one engine. `say` sends `report` to the manager and returns what the pool wants."""

    def __init__(
        self,
        host: HostWeights,
        server: RunningServer,
        send_report: Callable[[], Awaitable[WeightsOffer | None]],
    ) -> None:
        self._host = host
        self._server = server
        self._send_report = send_report
        self._wanted: WeightsOffer | None = None
        self._news = asyncio.Event()
        self._loaded: Snapshot | None = None
        self._held = ExitStack()
        self._fetched: WeightsOffer | None = None
        """The version that is being fetched."""
        self._waiting: WeightsOffer | None = None
        """A fetched version that waits for the engine to finish its requests."""
        self._may_load = False
        self._offered = asyncio.Event()
        """Something was offered since this was cleared."""
        self._problem = ""
        self._failed: tuple[int, str] | None = None
        """The version that failed last, of which `_failures` are counted."""
        self._failures = 0
        self._is_pausing = False
        self._bringing = asyncio.Lock()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Keep the loaded weights while the block runs; a load that is under way ends first."""
        self._host.stop()
        async with self._bringing:
            self._may_load = False
            yield

    @property
    def is_waiting(self) -> bool:
        """Return whether a downloaded version waits for the manager's permission to load it."""
        return self._waiting is not None

    @property
    def has_loaded(self) -> bool:
        """Return whether the engine serves other weights than it was started with."""
        return self._loaded is not None

    @property
    def problem(self) -> str:
        return self._problem

    def report(self) -> dict[str, Any]:
        """Return the `weights` of a heartbeat."""
        loaded, waiting = self._loaded, self._waiting
        fetched = {"fetched_version": waiting.weight_version} if waiting is not None else {}
        return fetched | {
            "weight_version": loaded.weight_version if loaded else None,
            "digest": loaded.manifest.digest if loaded else None,
            "source": self._host.source,
            "is_fetching": self._fetched is not None,
            "problem": self._problem,
            "received": asdict(self._host.received),
        }

    def offer(self, offer: WeightsOffer | None) -> None:
        """Take what the pool wants now, from the answer to a heartbeat."""
        self._may_load = offer is not None and offer.may_load
        self._offered.set()
        is_other = _content(offer) != _content(self._wanted)
        if self._fetched is not None and not is_other:
            return
        if self._fetched is not None and not _is_useful(self._fetched, offer):
            self._host.stop()
        self._wanted = offer
        if self._needs(offer) and (is_other or not self._is_pausing):
            self._news.set()

    def _needs(self, offer: WeightsOffer | None) -> bool:
        loaded = self._loaded
        has_it = loaded is not None and (loaded.weight_version, loaded.manifest.digest) == _content(offer)
        return offer is not None and bool(offer.sources) and not has_it

    async def run(self) -> str:
        """Follow the pool until cancelled; return the reason if the engine must be started again."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                offer = self._wanted
                if offer is None or not self._needs(offer):
                    continue
                try:
                    await self._bring(offer)
                except TornEngine as error:
                    return str(error)
                except WeightsError as error:
                    if _content(self._wanted) == _content(offer):
                        await self._fail(offer, str(error))
        finally:
            self._host.stop()
            self._held.close()

    async def listen(self, hear_of_weights: Callable[[str], Awaitable[None]]) -> None:
        """Ask for an offer as soon as the pool wants other weights, which a heartbeat would bring later.

        `hear_of_weights` returns once it may want others than those with the digest that it is given.
        """
        while True:
            await hear_of_weights("" if self._wanted is None else self._wanted.digest)
            if (answer := await self._send_report()) is not None:
                self.offer(answer)
            else:
                await asyncio.sleep(REPORT_S)

    async def _bring(self, offer: WeightsOffer) -> None:
        async with self._bringing:
            self._fetched = offer
            try:
                await self._host.fetch(offer)
            finally:
                self._fetched = None
            if offer.may_load:
                await self._serve(offer.weight_version)
                return
        await self._serve_when_finished(offer)

    async def _serve_when_finished(self, fetched: WeightsOffer) -> None:
        """Load a version once the engine has finished what it began, unless it is useless by then."""
        self._waiting = fetched
        try:
            if (answer := await self._send_report()) is not None:
                self.offer(answer)
            while _content(self._wanted) == _content(fetched) or _is_useful(fetched, self._wanted):
                await self._offered.wait()
                self._offered.clear()
                async with self._bringing:
                    if self._may_load:
                        await self._serve(fetched.weight_version)
                        return
        finally:
            self._waiting = None

    async def _serve(self, weight_version: int) -> None:
        with ExitStack() as stack:
            snapshot = stack.enter_context(self._host.hold(weight_version))
            previous = self._loaded
            if previous is not None and not previous.folder.exists():
                previous = None  # of a history that this pool has left

            async def report_loaded() -> None:
                self._loaded, self._waiting, self._problem = snapshot, None, ""
                await self._send_report()

            try:
                done = await self._load(snapshot, previous, report_loaded)
            except DamagedVersion:
                self._host.discard(weight_version)
                raise
            self._held.close()
            self._held = stack.pop_all()
        self._failures = 0
        log.info(
            "weight version %d is served after a pause of %.2f s, of which loading took %.2f s",
            *(done.weight_version, done.pause_s, done.load_s),
        )

    async def _load(
        self, snapshot: Snapshot, previous: Snapshot | None, on_loaded: Callable[[], Awaitable[None]]
    ) -> LoadReport:
        """Load a version; meanwhile report to the manager that the engine lives, which may not answer."""
        failure: WeightsError | None = None
        async with asyncio.TaskGroup() as jobs:
            reporting = jobs.create_task(self._keep_reporting(), name="beats during a load")
            try:
                return await self._server.load(snapshot, previous=previous, on_loaded=on_loaded)
            except WeightsError as error:
                failure = error  # outside of the group, which would wrap it
            finally:
                reporting.cancel()
        raise failure

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            await self._send_report()

    async def _fail(self, offer: WeightsOffer, problem: str) -> None:
        self._failures = self._failures + 1 if _content(offer) == self._failed else 1
        self._failed = _content(offer)
        self._problem = problem[:500]
        # A run that has ended leaves its last version announced, which an engine tries to fetch for minutes.
        if self._failures.bit_count() == 1:
            log.warning(
                "weight version %d (try %d) of the pool at %s: %s",
                *(offer.weight_version, self._failures, self._host.manager, problem),
            )
        await self._send_report()
        self._is_pausing = True
        try:
            async with asyncio.timeout(min(LONGEST_PAUSE_S, 0.5 * 2.0**self._failures)):
                await self._news.wait()  # a newer version is tried at once
        except TimeoutError:
            self._news.set()
        finally:
            self._is_pausing = False


def _is_useful(fetched: WeightsOffer, offer: WeightsOffer | None) -> bool:
    """Return whether a download goes on although another version is wanted."""
    if offer is None or offer.useful_from is None:
        return False
    return offer.useful_from <= fetched.weight_version < offer.weight_version


def _content(offer: WeightsOffer | None) -> tuple[int, str] | None:
    return (offer.weight_version, offer.digest) if offer is not None else None
