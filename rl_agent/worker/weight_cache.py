"""Weight cache of a worker's host: versions are downloaded, verified, and served to other hosts.

They lie in a folder of this worker alone, in shared memory where there is any, and go with it; the bytes are
shared with other workers of the host. What a worker that was killed left is removed by the next one of the
same user.
"""

import asyncio
import logging
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from yarl import URL

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import WeightsError
from rl_agent.pool.scheduler.reports import WeightBytes
from rl_agent.pool.schemas import TRANSFER_TOKEN, WeightsOffer
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.host_dedup import adopt, turn
from rl_agent.weights.download.receive import Announcement, Receiver
from rl_agent.weights.download.source_order import ReceiveReport, Upstream
from rl_agent.weights.server.server import IDLE_TIMEOUT_S, ServerSettings, WeightServer
from rl_agent.weights.settings import base_folder, trainer_folders
from rl_agent.weights.sources.source import Source
from rl_agent.weights.sources.source_http import HttpSource
from rl_agent.weights.sources.source_tcp import TcpSource
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.owner_lock import STORE_PREFIX, remove_orphaned
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from rl_agent.weights.transports import open_transport

T = TypeVar("T")
log = logging.getLogger(__name__)
PREFIX = f"{STORE_PREFIX}worker-"
TRANSFER_TIMEOUT_S = 300.0
"""One try to fetch a version: what is there then is kept for the next one."""
KEPT = 2
"""The version that is served, also as the base of the next difference, and the one before to go back to."""


class HostWeights:
    """The weight cache, a context manager; other hosts reach it at `address`.

    The pool's `manager`, reached under `headers` that are valid now, is asked for what no other host could
    give; with `transport=http` for all of it.
    """

    def __init__(
        self,
        settings: WeightsConfig,
        address: str,
        manager: str,
        headers: Callable[[], Mapping[str, str]] = dict,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._address = address
        self.manager = manager
        self._headers = headers
        self._tls = tls
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights-fetch")
        self._stop = threading.Event()
        self._server: WeightServer | None = None
        self._token: bytes | None = None
        """Token of the transfer, which receivers have to show."""
        self.received = WeightBytes()
        """Verified pieces that came so far, also those of downloads that failed."""

    def __enter__(self) -> "HostWeights":
        self._transport = open_transport(self._settings.transport, self._address)
        self._base = base_folder(self._settings)
        self._base.mkdir(parents=True, exist_ok=True)
        remove_orphaned(self._base)
        self._root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._base))
        self._open()
        self._try_to_listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.shutdown()
        self._close()
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def source(self) -> str | None:
        """Return the address at which this host serves its versions; None while it cannot listen."""
        server = self._server  # another thread may end it, and takes it away from here first
        return None if server is None else server.sources[0]

    def follow(self, manager: str) -> None:
        """Follow a manager that may have moved."""
        self.manager = manager

    def hold(self, weight_version: int) -> AbstractContextManager[Snapshot]:
        return self._store.hold(weight_version)

    def discard(self, weight_version: int) -> None:
        """Drop a damaged version; the next try downloads it again."""
        self._store.discard(weight_version)

    def stop(self) -> None:
        """Cancel the running download."""
        self._stop.set()

    async def fetch(self, offer: WeightsOffer) -> int:
        """Download and verify a version. Raises WeightsError; pieces that arrived are kept."""
        self._stop = stop = threading.Event()
        try:
            return await self._in_thread(self._fetch, offer, stop)
        finally:
            stop.set()

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except OSError as error:
            raise WeightsError(f"{self._root}: {error}") from error

    def _fetch(self, offer: WeightsOffer, stop: threading.Event) -> int:
        self._serve(offer)
        began = time.monotonic()
        announced = Announcement(offer.weight_version, offer.digest, offer.delta_digest)
        deadline = Deadline.after(TRANSFER_TIMEOUT_S)
        with turn(self._base, offer.digest, deadline, stop):
            linked = self._linked(announced)
            if linked is not None:
                log.info("weight version %d has arrived (shared within this host)", linked.weight_version)
                return linked.weight_version
            upstreams = self._upstreams(offer)
            timeout_s = deadline.remaining_s()
            report = ReceiveReport()
            try:
                snapshot, _ = self._receiver.receive(
                    announced, upstreams, timeout_s=timeout_s, stop=stop, report=report
                )
            finally:
                self.received = self.received.plus(_by_source(report, upstreams))
        way = f"{report.deltas} differences" if report.deltas else "whole"
        log.info(
            "weight version %d has arrived (%s, %.1f MB in %.1f s from %d addresses)",
            snapshot.weight_version,
            way,
            report.fetched_bytes / 1e6,
            time.monotonic() - began,
            sum(source.pieces > 0 for source in report.by_source.values()),
        )
        return snapshot.weight_version

    def _linked(self, announced: Announcement) -> Snapshot | None:
        """Share the version with another store of this host; None if none has it whole."""
        link = partial(adopt, self._store, announced=announced, threads=self._settings.thread_count)
        snapshot = link(self._base.glob(PREFIX + "*"))
        if snapshot is None and (snapshot := link(trainer_folders(self._base))) is not None:
            size_bytes = snapshot.manifest.full.size_bytes
            self.received = self.received.plus(WeightBytes(same_host=size_bytes))
        return snapshot

    def _upstreams(self, offer: WeightsOffer) -> list[Upstream]:
        """Return the download sources in order: other hosts, the manager."""
        is_by_http = self._settings.transport == "http"
        addresses = () if is_by_http else offer.sources
        own, others = addresses[: offer.publisher_addresses], addresses[offer.publisher_addresses :]
        return [
            Upstream(self._sources(own, offer), self._sources(others, offer)),
            Upstream([self._by_manager(offer)]),
        ]

    def _by_manager(self, offer: WeightsOffer) -> HttpSource:
        def headers() -> Mapping[str, str]:
            return {**self._headers(), TRANSFER_TOKEN: offer.transfer_token}

        return HttpSource(f"{self.manager}/weights", headers, IDLE_TIMEOUT_S, self._tls)

    def _sources(self, addresses: Sequence[str], offer: WeightsOffer) -> list[Source]:
        """Return the sources whose addresses are valid."""
        sources = []
        for address in addresses:
            try:
                sources.append(self._source(URL(address), offer))
            except ValueError:
                log.warning("%r: is not an address of a source; other sources are used", address)
        return sources

    def _source(self, url: URL, offer: WeightsOffer) -> Source:
        if url.host is None or url.port is None:
            raise ValueError
        idle_s = IDLE_TIMEOUT_S
        return self._transport.source(TcpSource(url.host, url.port, offer.transfer_token.encode(), idle_s))

    def _serve(self, offer: WeightsOffer) -> None:
        """Serve with the transfer's token; clear the cache if it is of another history."""
        newest = self._store.newest
        is_other = newest is not None and (
            newest.weight_version > offer.weight_version
            or (newest.weight_version == offer.weight_version and newest.manifest.digest != offer.digest)
        )
        if is_other:
            self._close()
            shutil.rmtree(self._root)
            self._root.mkdir(mode=0o700)
            self._open()
        self._token = offer.transfer_token.encode()
        self._listen().change_token(self._token)

    def _try_to_listen(self) -> None:
        try:
            self._listen()
        except WeightsError as error:
            log.warning("%s; retried when a version is fetched", error)

    def _listen(self) -> WeightServer:
        """Start the server. Raises WeightsError if it cannot listen at the address."""
        if self._server is None:
            settings = ServerSettings.of(self._settings, (self._address,), self._settings.peer_port)
            try:
                self._server = self._transport.server(self._catalog, self._token, settings).__enter__()
            except OSError as error:
                raise WeightsError(f"{self._address} cannot be listened on: {error}") from error
        return self._server

    def _open(self) -> None:
        self._store = SnapshotStore(self._root, keep_versions=KEPT)
        self._catalog = Catalog(self._store)
        self._receiver = Receiver(self._store, self._catalog, self._settings)

    def _close(self) -> None:
        self._end_server()
        self._store.close()

    def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.__exit__(None, None, None)


def _by_source(report: ReceiveReport, upstreams: Sequence[Upstream]) -> WeightBytes:
    """Return the bytes that came, given the upstreams in the order of `HostWeights._upstreams`."""
    hosts, managers = upstreams

    def sum_of(sources: Sequence[Source]) -> int:
        names = {str(source) for source in sources}
        return sum(entry.size_bytes for name, entry in report.by_source.items() if name in names)

    return WeightBytes(
        trainer=sum_of(hosts.origins),
        engines=sum_of(hosts.peers),
        manager=sum_of(managers.origins),
    )
