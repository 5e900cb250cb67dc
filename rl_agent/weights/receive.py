"""Bring a version into this host's store, from wherever it can be had, and give it on while it comes.

    announced (version, digest) ─► manifest ─► route ─► draft ─► fetched, decoded ─► verified ─► published
                                                 ▲                      │ a delta that gives other weights
                                                 └──── full transfer ◄──┘

Until the last step the old version is the newest here; a failure leaves the draft, and the next try goes on
with what of it is right.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rl_agent.errors import WeightsError
from rl_agent.weights.checksums import wrong_pieces
from rl_agent.weights.deadline import Deadline
from rl_agent.weights.delta import decode_delta
from rl_agent.weights.draft_file import DraftFile
from rl_agent.weights.fetch import BlobWanted, Connection, FetchSettings, Source, SourceReport, fetch_blob
from rl_agent.weights.given_up import GIVEN_UP_S, GivenUp
from rl_agent.weights.manifest import Blob, Manifest
from rl_agent.weights.pieces import PieceSet
from rl_agent.weights.routes import Route, choose_route
from rl_agent.weights.shelf import Shelf
from rl_agent.weights.store import DELTA, FULL, Draft, Snapshot, SnapshotStore

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ReceiveSettings:
    fetch: FetchSettings
    threads: int
    max_deltas: int
    """Deltas that may be applied one after the other; a receiver further behind takes the full version."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What the manager says a version is; everything else is checked against it."""

    weight_version: int
    digest: str


@dataclass
class ReceiveReport:
    """How a version came."""

    deltas: int = 0
    """Deltas that were applied; 0: a full transfer."""
    fetched_bytes: int = 0
    resumed_bytes: int = 0
    by_source: dict[str, SourceReport] = field(default_factory=dict)


class Receiver:
    """Fetches into one store. One version at a time."""

    def __init__(
        self,
        store: SnapshotStore,
        shelf: Shelf,
        settings: ReceiveSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._settings = settings
        self._out_of_reach = GivenUp(clock=clock)

    def receive(
        self,
        announced: Announcement,
        sources: Sequence[Source],
        *,
        peers: Sequence[Source] = (),
        fallbacks: Sequence[Source] = (),
        timeout_s: float,
        stop: threading.Event,
    ) -> tuple[Snapshot, ReceiveReport]:
        """The announced version, verified and published here.

        `sources` are the addresses of who makes the versions. `peers` give what they have beside them.
        `fallbacks` are asked for what both could not give. They take the place of the sources while all of
        those are out of reach: the peers may be waiting for this receiver. Raises WeightsError when nobody
        could, at the deadline, or when told to stop; the newest version here is then what it was.
        """
        report = ReceiveReport()
        newest = self._store.newest
        if newest is not None and newest.weight_version == announced.weight_version:
            if newest.manifest.digest == announced.digest:
                return newest, report
            raise WeightsError(f"version {announced.weight_version} is here with another digest")
        if newest is not None and newest.weight_version > announced.weight_version:
            raise WeightsError(
                f"version {announced.weight_version} is older than {newest.weight_version}, which is here"
            )
        deadline = Deadline.after(timeout_s)
        transfer = _Transfer(
            self._settings.fetch, sources, peers, fallbacks, self._out_of_reach, deadline, stop, report
        )
        try:
            return self._receive(announced, transfer), report
        except WeightsError:
            if not stop.is_set():
                self._out_of_reach.clear()  # the other way did not do: the next try is by all
            raise

    def _receive(self, announced: Announcement, transfer: "_Transfer") -> Snapshot:
        route = self._route(announced, transfer)
        manifest = route.target.model_copy(update={"weight_version": announced.weight_version})
        draft = self._store.draft(announced.weight_version, content=announced.digest)
        file = draft.create(FULL, manifest.full.size_bytes)
        if route.deltas:
            try:
                self._apply_deltas(route, draft, file, transfer)
                transfer.report.deltas = len(route.deltas)
                return self._store.publish(draft, manifest)
            except _WrongResult as error:
                _log.warning("version %d: %s; fetching it in full", announced.weight_version, error)
        manifest = manifest.model_copy(update={"delta": None})
        self._fetch(manifest, FULL, manifest.full, draft, file, transfer)
        return self._store.publish(draft, manifest)

    def _route(self, announced: Announcement, transfer: "_Transfer") -> Route:
        """Manifests from the target back to a version that is here, as far as the sources have them."""
        here = {}
        for weight_version in self._store.versions:
            with self._store.hold(weight_version) as snapshot:
                here[snapshot.manifest.digest] = weight_version
        chain = [transfer.ask(lambda c, d: c.manifest(announced.weight_version, announced.digest, d))]
        while here and len(chain) < self._settings.max_deltas:
            delta = chain[-1].delta
            if delta is None or delta.base_digest in here:
                break
            base_version, base_digest = delta.base_version, delta.base_digest
            try:
                chain.append(transfer.ask(lambda c, d: c.manifest(base_version, base_digest, d)))  # noqa: B023
            except WeightsError:
                break  # the sources have dropped that version
        return choose_route(chain, here.keys(), max_deltas=self._settings.max_deltas)

    def _apply_deltas(self, route: Route, draft: Draft, target: DraftFile, transfer: "_Transfer") -> None:
        base_version = next(
            weight_version
            for weight_version in self._store.versions
            if self._digest_of(weight_version) == route.base_digest
        )
        with self._store.hold(base_version) as base:
            before = base.map(FULL)
            for manifest in route.deltas:
                if manifest.delta is None:
                    raise WeightsError(f"version {manifest.weight_version} has no delta")
                blob = manifest.delta.blob
                # Each its own file, since others may be reading the one before. Only the last is published.
                is_last = manifest is route.deltas[-1]
                name = DELTA if is_last else f"{DELTA}-{manifest.weight_version}"
                file = draft.create(name, blob.size_bytes)
                self._fetch(manifest, DELTA, blob, draft, file, transfer)
                threads = self._settings.threads
                try:
                    decode_delta(file.map(), before, target.write, manifest.tensors, threads=threads)
                except WeightsError as error:
                    raise _WrongResult(str(error)) from error
                before = target.map()  # the next delta is applied in place
        full = route.target.full
        wrong = wrong_pieces(before, full.piece_bytes, full.digests, threads=self._settings.threads)
        if wrong:
            raise _WrongResult(f"the delta gives other weights in {len(wrong)} pieces")

    def _digest_of(self, weight_version: int) -> str:
        with self._store.hold(weight_version) as snapshot:
            return snapshot.manifest.digest

    def _fetch(
        self,
        manifest: Manifest,
        name: str,
        blob: Blob,
        draft: Draft,
        file: DraftFile,
        transfer: "_Transfer",
    ) -> None:
        pieces = PieceSet(len(blob.digests))
        if draft.is_resumed:
            threads = self._settings.threads
            wrong = set(wrong_pieces(file.map(), blob.piece_bytes, blob.digests, threads=threads))
            for index in set(range(pieces.count)) - wrong:
                start, end = blob.range_of(index)
                transfer.report.resumed_bytes += end - start
                pieces.add(index)
        with self._shelf.partial(manifest, name, file.path, pieces):
            transfer.fetch(BlobWanted(manifest.weight_version, name, blob, file.write, file.place), pieces)


class _WrongResult(Exception):
    """Deltas that were whole, but gave other weights than announced."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """The sources of one version, and the time that is left for it."""

    settings: FetchSettings
    sources: Sequence[Source]
    peers: Sequence[Source]
    fallbacks: Sequence[Source]
    out_of_reach: GivenUp
    """Sources and peers; not looked at where there are no fallbacks."""
    deadline: Deadline
    stop: threading.Event
    report: ReceiveReport

    def ask(self, question: Callable[[Connection, Deadline], _T]) -> _T:
        """The first answer that any source gives. Raises WeightsError with all their reasons if none does."""
        reasons: dict[str, str] = {}
        asked = (*self._in_reach(self.sources), *self._in_reach(self.peers), *self.fallbacks)
        for attempt in range(self.settings.retries + 1):
            if attempt and self.stop.wait(self.settings.retry_pause_s * attempt):
                break
            for source in asked:
                if self.stop.is_set() or self.deadline.is_over:
                    break
                connection = source.connection()
                deadline = self.deadline.sooner(self.settings.piece_timeout_s)
                try:
                    self._open(source, connection, deadline)
                    return question(connection, deadline)
                except (OSError, WeightsError) as error:
                    reasons[str(source)] = str(error)
                finally:
                    connection.close()
        if self.stop.is_set():
            raise WeightsError("told to stop")
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise WeightsError(why or "there is no source")

    def _in_reach(self, sources: Sequence[Source]) -> Sequence[Source]:
        if not self.fallbacks:
            return sources
        return [source for source in sources if str(source) not in self.out_of_reach]

    def _open(self, source: Source, connection: Connection, deadline: Deadline) -> None:
        try:
            connection.open(deadline)
        except OSError as error:
            if not self.deadline.is_over and not isinstance(error, ConnectionResetError):
                self._leave_out(source, error)
            raise

    def _leave_out(self, source: Source, why: object) -> None:
        if self.fallbacks and source not in self.fallbacks:
            _log.warning("%s is out of reach; others are asked for %g s: %s", source, GIVEN_UP_S, why)
            self.out_of_reach.add(str(source))

    def fetch(self, wanted: BlobWanted, pieces: PieceSet) -> None:
        sources, peers, fallbacks = self._in_reach(self.sources), self._in_reach(self.peers), self.fallbacks
        if not sources:
            sources, fallbacks = fallbacks, ()
        try:
            self._fetch_from([*sources, *peers], wanted, pieces)
        except WeightsError as error:
            if not fallbacks or self.stop.is_set() or self.deadline.is_over:
                raise
            _log.warning("%s; asking %s", error, ", ".join(map(str, fallbacks)))
            self._fetch_from(fallbacks, wanted, pieces)

    def _fetch_from(self, sources: Sequence[Source], wanted: BlobWanted, pieces: PieceSet) -> None:
        reports = fetch_blob(wanted, pieces, sources, self.settings, self.deadline, self.stop)
        for source in sources:
            report = self.report.by_source[str(source)] = reports[str(source)]
            self.report.fetched_bytes += report.size_bytes
            if report.failures and not report.is_reached:
                self._leave_out(source, report.failures[-1])
