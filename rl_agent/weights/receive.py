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
from dataclasses import dataclass

from rl_agent.errors import WeightsError
from rl_agent.weights.checksums import wrong_pieces
from rl_agent.weights.deadline import Deadline
from rl_agent.weights.delta import decode_delta
from rl_agent.weights.draft_file import DraftFile
from rl_agent.weights.fetch import BlobWanted, FetchSettings
from rl_agent.weights.given_up import GivenUp
from rl_agent.weights.manifest import Blob, Manifest
from rl_agent.weights.pieces import PieceSet
from rl_agent.weights.routes import Route, choose_route
from rl_agent.weights.shelf import Shelf
from rl_agent.weights.store import DELTA, FULL, Draft, Snapshot, SnapshotStore
from rl_agent.weights.upstreams import ReceiveReport, Transfer, Upstream

_log = logging.getLogger(__name__)


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
        upstreams: Sequence[Upstream],
        *,
        timeout_s: float,
        stop: threading.Event,
    ) -> tuple[Snapshot, ReceiveReport]:
        """The announced version, verified and published here.

        Raises WeightsError when none of the `upstreams` could give it, at the deadline, or when told to stop;
        the newest version here is then what it was.
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
        transfer = Transfer(self._settings.fetch, upstreams, self._out_of_reach, deadline, stop, report)
        try:
            return self._receive(announced, transfer), report
        except WeightsError:
            if not stop.is_set():
                self._out_of_reach.clear()  # the other way did not do: the next try is by all
            raise

    def _receive(self, announced: Announcement, transfer: Transfer) -> Snapshot:
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

    def _route(self, announced: Announcement, transfer: Transfer) -> Route:
        """By manifests from the target back to a version that is here, as far as the sources have them."""

        def ask(weight_version: int, digest: str, *, retries: int) -> Manifest:
            return transfer.ask(lambda c, d: c.manifest(weight_version, digest, d), retries=retries)

        here = self._here()
        retries = self._settings.fetch.retries
        manifests = [ask(announced.weight_version, announced.digest, retries=retries)]
        while here and len(manifests) < self._settings.max_deltas:
            delta = manifests[-1].delta
            if delta is None or delta.base_digest in here:
                break
            try:
                manifests.append(ask(delta.base_version, delta.base_digest, retries=0))
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

    def _here(self) -> dict[str, int]:
        """The versions of the store, by their digests."""
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
