"""Publishes a version from a source of tensors: lays out, writes, encodes, computes digests."""

import logging
import mmap
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import WeightsError
from rl_agent.weights.format.checksums import piece_digests
from rl_agent.weights.format.delta import encode_delta
from rl_agent.weights.format.delta_policy import DeltaCost, DeltaSwitch
from rl_agent.weights.format.dtypes import kind_of
from rl_agent.weights.format.manifest import (
    MAX_PIECES,
    Blob,
    Delta,
    Layout,
    content_digest,
    lay_out,
    make_manifest,
)
from rl_agent.weights.publish.filling import fill
from rl_agent.weights.store.store import DELTA, FULL, Draft, Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import TensorSource, served_as

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_MOST_PIECES = MAX_PIECES // 2
_LEAST_PIECE_BYTES = 2**20
DELTA_BLOCK_BYTES = 2**20
"""Bytes that are encoded together: enough to compress well, and few enough that all threads have some."""
_PIECES = 64
"""A blob has at least as many, if they are not too small then."""


class Publisher:
    """Publishes versions into a store, each also as a difference from the one before while that pays."""

    def __init__(
        self,
        store: SnapshotStore,
        weights: WeightsConfig,
        *,
        serving_dtype: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Publish into `store`; floats are cast to `serving_dtype`, e.g. BF16, or sent as they are."""
        self._store = store
        self._weights = weights
        self._serving_dtype = serving_dtype
        self._clock = clock
        self._switch = DeltaSwitch()

    def publish(
        self,
        weight_version: int,
        source: TensorSource,
        *,
        unless: str | None = None,
        on_number: Callable[[int], None] | None = None,
        has_receivers: bool = True,
    ) -> Snapshot:
        """Make `source` version `weight_version`. Nobody sees it before it is whole.

        If its digest is `unless`, that of the newest version, that one is returned and none is made.
        `on_number` is called once, with the number that these weights have, before anybody can see them.
        Without `has_receivers`, `delta=auto` makes no difference.
        Raises WeightsError if the source gives other tensors than it said, or of another type than the newest
        version's, if a value is not finite, or the version is not the newest.
        """
        layout = lay_out(served_as(spec, self._serving_dtype) for spec in source.specs)
        self._check_types(layout)
        newest, draft = self._store.newest, self._store.draft(weight_version)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, draft.folder, ignore_errors=True)
            file = draft.create(FULL, layout.size_bytes)
            began = self._clock()
            device = fill(
                *(file, layout, source),
                threads=self._weights.thread_count,
                check_finite=self._weights.check_finite,
            )
            filled = self._clock()
            view = file.view()
            full = self._blob(view)
            digested = self._clock()
            is_same = unless is not None and unless == content_digest(layout.tensors, source.aliases, full)
            same = newest if is_same else None
            if on_number is not None:
                on_number(same.weight_version if same else weight_version)
            if same is not None:
                return same
            delta = self._delta(draft, view, layout, device, has_receivers=has_receivers)
            _log.info(
                "version %d: %.2f s to write, %.2f s for its digests, %.2f s for the delta",
                *(weight_version, filled - began, digested - filled, self._clock() - digested),
            )
            manifest = make_manifest(weight_version, layout, source.aliases, full, delta)
            snapshot = self._store.publish(draft, manifest)
            stack.pop_all()
            return snapshot

    def _check_types(self, layout: Layout) -> None:
        """Check that a version is of the model of the one before. Raises WeightsError."""
        newest = self._store.newest
        before = {} if newest is None else {tensor.name: tensor.dtype for tensor in newest.manifest.tensors}
        for tensor in layout.tensors:
            dtype = before.get(tensor.name, tensor.dtype)
            if kind_of(tensor.dtype) != kind_of(dtype):
                raise WeightsError(f"{tensor.name}: is of type {tensor.dtype}, in the version before {dtype}")

    def _delta(
        self,
        draft: Draft,
        view: memoryview,
        layout: Layout,
        device: "torch.device | None",
        *,
        has_receivers: bool,
    ) -> Delta | None:
        base, weights = self._store.newest, self._weights
        is_wanted = self._switch.is_on(weights) and (has_receivers or weights.delta == "always")
        if base is None or base.manifest.tensors != layout.tensors or not is_wanted:
            self._switch = self._switch.after(weights, None)
            return None
        began = self._clock()
        encoded = self._encode(base.view(FULL), view, layout, device)
        took_s = self._clock() - began
        size_bytes = layout.size_bytes if encoded is None else len(encoded)
        # Decoding is never slower than encoding; what it takes at a receiver is not known here.
        cost = DeltaCost(layout.size_bytes, size_bytes, encode_s=took_s, decode_s=took_s)
        self._switch = self._switch.after(weights, cost)
        if encoded is None:
            return None
        draft.create(DELTA, len(encoded)).write(0, encoded)
        return Delta(
            base_version=base.weight_version,
            base_digest=base.manifest.digest,
            base_delta=base.manifest.delta_digest,
            blob=self._blob(memoryview(encoded)),
        )

    def _encode(
        self, base: memoryview, new: memoryview, layout: Layout, device: "torch.device | None"
    ) -> bytes | None:
        encode = partial(
            encode_delta,
            *(base, new, layout.tensors),
            block_bytes=DELTA_BLOCK_BYTES,
            threads=self._weights.thread_count,
            limit_bytes=layout.size_bytes,
        )
        if device is not None:
            import torch

            try:
                return encode(device=device)
            except torch.OutOfMemoryError:
                _log.info("no room on %s for a block of the difference: it is computed on the CPU", device)
        return encode()

    def _blob(self, view: memoryview) -> Blob:
        piece_bytes = choose_piece_bytes(len(view), self._weights.piece_bytes)
        digests = piece_digests(view, piece_bytes, threads=self._weights.thread_count)
        return Blob(len(view), piece_bytes, digests)


def choose_piece_bytes(size_bytes: int, most_bytes: int) -> int:
    """Choose a size: large pieces take fewer questions, of many pieces each receiver has some to give.

    More than `most_bytes` where the digests of full blob and delta would fill the manifest, which has to name
    every tensor, too: a mixture of experts has tens of thousands.
    """
    usual = min(most_bytes, max(_LEAST_PIECE_BYTES, size_bytes // _PIECES // mmap.PAGESIZE * mmap.PAGESIZE))
    return max(usual, -(-size_bytes // _MOST_PIECES // mmap.PAGESIZE) * mmap.PAGESIZE)
