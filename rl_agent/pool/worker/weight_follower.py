"""The weights in one engine, from its start to its end: what the pool wants, fetched and loaded as it runs.

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
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.pool.schemas import WeightsOffer
from rl_agent.pool.worker.weight_cache import HostWeights
from rl_agent.weights.load.base import LoadReport, RunningServer, TornEngine
from rl_agent.weights.store.store import DamagedVersion, Snapshot

log = logging.getLogger(__name__)
LONGEST_PAUSE_S = 30.0
SAY_S = 1.0


class EngineWeights:
    """`say` tells the manager what `report` says now; its answer is what the pool wants, if there is one."""

    def __init__(
        self, host: HostWeights, server: RunningServer, say: Callable[[], Awaitable[WeightsOffer | None]]
    ) -> None:
        self._host = host
        self._server = server
        self._say = say
        self._wanted: WeightsOffer | None = None
        self._news = asyncio.Event()
        self._loaded: Snapshot | None = None
        self._held = ExitStack()
        self._fetched: WeightsOffer | None = None
        """What is being fetched."""
        self._waiting: WeightsOffer | None = None
        """What is fetched, and waits for the engine to finish what it began."""
        self._may_load = False
        self._heard = asyncio.Event()
        """Something was offered since this was cleared."""
        self._problem = ""
        self._failures = 0
        self._is_pausing = False
        self._bringing = asyncio.Lock()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """What is loaded stays so meanwhile, however much is offered; a load that is under way ends first."""
        self._host.stop()
        async with self._bringing:
            self._may_load = False
            yield

    @property
    def is_waiting(self) -> bool:
        """The manager's next answer may let the engine go on."""
        return self._waiting is not None

    @property
    def has_loaded(self) -> bool:
        """Whether it serves other weights than it was started with."""
        return self._loaded is not None

    @property
    def problem(self) -> str:
        return self._problem

    def report(self) -> dict[str, Any]:
        """The `weights` of a beat."""
        loaded, waiting = self._loaded, self._waiting
        fetched = {"fetched_version": waiting.weight_version} if waiting is not None else {}
        return fetched | {
            "weight_version": loaded.weight_version if loaded else None,
            "digest": loaded.manifest.digest if loaded else None,
            "source": self._host.source,
            "is_fetching": self._fetched is not None,
            "problem": self._problem,
        }

    def offer(self, offer: WeightsOffer | None) -> None:
        """What the pool wants now, from the answer to a beat."""
        self._may_load = offer is not None and offer.may_load
        self._heard.set()
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
        """Follow what is offered, until cancelled; returns why if the engine has to be started again."""
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
        """Once the engine has finished what it began, unless the version is of no use any more by then."""
        self._waiting = fetched
        try:
            if (answer := await self._say()) is not None:
                self.offer(answer)
            while _content(self._wanted) == _content(fetched) or _is_useful(fetched, self._wanted):
                await self._heard.wait()
                self._heard.clear()
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

            async def say_loaded() -> None:
                self._loaded, self._waiting, self._problem = snapshot, None, ""
                await self._say()

            try:
                done = await self._load(snapshot, previous, say_loaded)
            except DamagedVersion:
                self._host.discard(weight_version)
                raise
            self._held.close()
            self._held = stack.pop_all()
        self._failures = 0
        log.info("weight version %d serves after %.2f s of pause", done.weight_version, done.pause_s)

    async def _load(
        self, snapshot: Snapshot, previous: Snapshot | None, on_loaded: Callable[[], Awaitable[None]]
    ) -> LoadReport:
        """An engine may not answer while it loads: meanwhile the manager hears from here that it lives."""
        failure: WeightsError | None = None
        async with asyncio.TaskGroup() as jobs:
            saying = jobs.create_task(self._keep_saying(), name="beats during a load")
            try:
                return await self._server.load(snapshot, previous=previous, on_loaded=on_loaded)
            except WeightsError as error:
                failure = error  # outside of the group, which would wrap it
            finally:
                saying.cancel()
        raise failure

    async def _keep_saying(self) -> None:
        while True:
            await asyncio.sleep(SAY_S)
            await self._say()

    async def _fail(self, offer: WeightsOffer, problem: str) -> None:
        self._failures += 1
        self._problem = problem[:500]
        log.warning("weight version %d (try %d): %s", offer.weight_version, self._failures, problem)
        await self._say()
        self._is_pausing = True
        try:
            async with asyncio.timeout(min(LONGEST_PAUSE_S, 0.5 * 2.0**self._failures)):
                await self._news.wait()  # a newer version is tried at once
        except TimeoutError:
            self._news.set()
        finally:
            self._is_pausing = False


def _is_useful(fetched: WeightsOffer, wanted: WeightsOffer | None) -> bool:
    """Whether a fetch is to go on although another version is wanted."""
    if wanted is None or wanted.useful_from is None:
        return False
    return wanted.useful_from <= fetched.weight_version < wanted.weight_version


def _content(offer: WeightsOffer | None) -> tuple[int, str] | None:
    return (offer.weight_version, offer.digest) if offer is not None else None
