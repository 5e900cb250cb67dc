"""Fetches a version into this host's store, and offers its verified pieces to others meanwhile.

    announced (version, digests) ─► manifest ─► route ─► draft ─► fetched, decoded ─► verified ─► published
                                                 ▲                      │ a delta that cannot be had, or
                                                 └──── full transfer ◄──┘ gives other weights

What no announced digest covers of a manifest is dropped, before anything is done with it or it is given on.
Until the last step the old version is the newest here; a failure leaves the draft, and the next try goes on
with what of it is right. A full transfer leaves out the pieces that the old version has, too.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.delta_chain import Route, choose_route
from rl_agent.weights.download.fetch import BlobWanted
from rl_agent.weights.download.source_order import ReceiveReport, Transfer, Upstream
from rl_agent.weights.format.checksums import wrong_pieces
from rl_agent.weights.format.delta import decode_delta
from rl_agent.weights.format.manifest import Blob, Manifest
from rl_agent.weights.format.pieces import PieceSet
from rl_agent.weights.sources.cooldown import Cooldown
from rl_agent.weights.sources.source import GuardedConnection
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.mapped_file import DraftFile
from rl_agent.weights.store.store import DELTA, FULL, Draft, Snapshot, SnapshotStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A version as the manager announces it; everything else is checked against it."""

    weight_version: int
    digest: str
    delta_digest: str | None = None
    """The digest of its difference from the version before; None: differences of it are not believed."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Announcement":
        return cls(manifest.weight_version, manifest.digest, manifest.delta_digest)

    def what_it_covers(self, manifest: Manifest) -> Manifest:
        """Return what of the manifest its digests cover. Raises WeightsError if it is of another version."""
        if manifest.weight_version != self.weight_version:
            raise WeightsError(
                f"answers with the manifest of version {manifest.weight_version}, not {self.weight_version}"
            )
        return manifest.with_delta_of(self.delta_digest)


class Receiver:
    """Fetches versions into one store, one at a time."""

    def __init__(self, store: SnapshotStore, catalog: Catalog, settings: WeightsConfig) -> None:
        self._store = store
        self._catalog = catalog
        self._settings = settings
        self._out_of_reach = Cooldown()

    def receive(
        self,
        announced: Announcement,
        upstreams: Sequence[Upstream],
        *,
        timeout_s: float,
        stop: threading.Event,
        report: ReceiveReport | None = None,
    ) -> tuple[Snapshot, ReceiveReport]:
        """Fetch, verify and publish the announced version.

        `report`: filled in as it goes, for those who need it of a failure, too.

        Raises WeightsError when none of the `upstreams` could give it, at the deadline, or when cancelled;
        the newest version here is then what it was.
        """
        report = ReceiveReport() if report is None else report
        newest = self._store.newest
        if newest is not None and newest.weight_version == announced.weight_version:
            if newest.manifest.digest == announced.digest:
                return newest, report
            raise WeightsError(f"version {announced.weight_version} exists here with another digest")
        if newest is not None and newest.weight_version > announced.weight_version:
            raise WeightsError(
                f"version {announced.weight_version} is older than {newest.weight_version}, which is here"
            )
        deadline = Deadline.after(timeout_s)
        transfer = Transfer(self._settings, upstreams, self._out_of_reach, deadline, stop, report)
        try:
            try:
                return self._receive(announced, transfer), report
            except OSError as error:  # of its own files: no source raises one
                self._store.drop_drafts()
                raise WeightsError(f"{self._store.root}: {error}; the next try starts over") from error
        except WeightsError:
            if not stop.is_set():
                self._out_of_reach.clear()  # the fallbacks failed as well: the next try asks all
            raise

    def _receive(self, announced: Announcement, transfer: Transfer) -> Snapshot:
        route = self._route(announced, transfer)
        manifest = route.target
        draft = self._store.draft(announced.weight_version, content=announced.digest)
        file = draft.create(FULL, manifest.full.size_bytes)
        if route.deltas:
            try:
                self._apply_deltas(route, draft, file, transfer)
            except (OSError, WeightsError) as error:
                if transfer.is_over:
                    raise
                _log.warning("as a delta: %s; fetching it in full", error)
            else:
                transfer.report.deltas = len(route.deltas)
                return self._store.publish(draft, manifest)
        manifest = manifest.without_delta()
        self._fetch(manifest, FULL, manifest.full, draft, file, transfer)
        return self._store.publish(draft, manifest)

    def _route(self, announced: Announcement, transfer: Transfer) -> Route:
        """Ask for manifests from the target back to a version that is here, and choose among them."""

        def ask(announcement: Announcement, *, retries: int) -> Manifest:
            def question(connection: GuardedConnection, deadline: Deadline) -> Manifest:
                manifest = connection.manifest(announcement.weight_version, announcement.digest, deadline)
                return announcement.what_it_covers(manifest)

            return transfer.ask(question, retries=retries)

        here = self._here()
        manifests = [ask(announced, retries=self._settings.retries)]
        while here and len(manifests) < self._settings.max_deltas:
            delta = manifests[-1].delta
            if delta is None or delta.base_digest in here:
                break
            try:
                base = Announcement(delta.base_version, delta.base_digest, delta.base_delta)
                manifests.append(ask(base, retries=0))
            except WeightsError:
                break  # the sources have dropped that version
        return choose_route(manifests, here, max_deltas=self._settings.max_deltas)

    def _apply_deltas(self, route: Route, draft: Draft, target: DraftFile, transfer: Transfer) -> None:
        base_version = next(
            version for digest, version in self._here().items() if digest == route.base_digest
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
                threads = self._settings.thread_count
                try:
                    decode_delta(file.map(), before, target.write, manifest.tensors, threads=threads)
                except Exception as error:
                    raise WeightsError(f"delta: cannot be decoded: {error!r:.200}") from error
                before = target.map()  # the next delta is applied in place
        full = route.target.full
        wrong = wrong_pieces(before, full.piece_bytes, full.digests, threads=self._settings.thread_count)
        if wrong:
            raise WeightsError(f"delta: gives other weights in {len(wrong)} pieces")

    def _here(self) -> dict[str, int]:
        """List the versions of the store by their digests."""
        here = {}
        for weight_version in self._store.versions:
            with self._store.hold(weight_version) as snapshot:
                here[snapshot.manifest.digest] = weight_version
        return here

    def _fetch(
        self,
        manifest: Manifest,
        name: str,
        blob: Blob,
        draft: Draft,
        file: DraftFile,
        transfer: Transfer,
    ) -> None:
        pieces = PieceSet(len(blob.digests))
        copied = self._copy_equal_pieces(blob, file) if name == FULL else []
        here = range(pieces.count) if draft.is_resumed else copied
        threads = self._settings.thread_count
        wrong = wrong_pieces(file.map(), blob.piece_bytes, blob.digests, threads=threads, among=here)
        for index in set(here).difference(wrong):
            start, end = blob.range_of(index)
            transfer.report.resumed_bytes += end - start
            pieces.add(index)
        with self._catalog.partial(manifest, name, file.path, pieces):
            transfer.fetch(BlobWanted(manifest.weight_version, name, blob, file.write, file.place), pieces)

    def _copy_equal_pieces(self, blob: Blob, file: DraftFile) -> Sequence[int]:
        """Copy the pieces that the newest version here has as well, such as those of a frozen vision tower.

        Returns their indices. They are believed as little as what an earlier try left.
        """
        newest = self._store.newest
        if newest is None or newest.manifest.full.piece_bytes != blob.piece_bytes:
            return []
        digests = zip(newest.manifest.full.digests, blob.digests, strict=False)
        equal = [index for index, (before, wanted) in enumerate(digests) if before == wanted]
        with self._store.hold(newest.weight_version) as base:
            before = base.view(FULL)
            for start, end in map(blob.range_of, equal):
                file.write(start, before[start:end])
        return equal
