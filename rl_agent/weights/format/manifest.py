"""Defines the manifest of a weight version; docs/reference/weights-format.md specifies the format.

    full blob    every tensor once, widest elements first, each at a multiple of 64 bytes, zeros between
    delta blob   the same bytes as a difference from the full blob of an earlier version with the same layout
    manifest     names, dtypes, shapes and places; digests of the pieces; one digest over all that is content

The content digest covers everything but the version number and the delta: two versions with the same digest
hold the same weights, however they came about. The delta has a digest of its own, which is announced beside.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple, replace

from rl_agent.errors import WeightsError
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.dtypes import WIDTH_OF

ALIGNMENT = 64
MAX_PIECES = 2**18
MAX_MANIFEST_BYTES = 2**25
"""Read in a fifth of a second, in about three times the memory: what one from a stranger may cost."""
MAX_PIECE_BYTES = 2**30
_MAX_TENSORS = 2**19

Size = Annotated[int, Meta(ge=0, lt=2**48)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[str, Meta(min_length=64, max_length=64)]
"""The digest of a piece."""
Name = Annotated[str, Meta(max_length=1024)]


class TensorEntry(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A tensor and its place in the full blob; the content digest covers the fields in this order."""

    name: Name
    dtype: Annotated[str, Meta(max_length=16)]
    shape: Annotated[tuple[Size, ...], Meta(max_length=16)]
    start: Size
    """First byte in the full blob."""
    size_bytes: Size

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


class Blob(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that travels in pieces, each with its digest."""

    size_bytes: Size
    piece_bytes: Annotated[int, Meta(ge=1, le=MAX_PIECE_BYTES)]
    digests: Annotated[tuple[Digest, ...], Meta(max_length=MAX_PIECES)]

    @property
    def longest_piece(self) -> int:
        """The bytes of the longest piece: `piece_bytes`, or less where the blob has no more."""
        return min(self.piece_bytes, self.size_bytes)

    def range_of(self, index: int) -> tuple[int, int]:
        start = index * self.piece_bytes
        return start, min(start + self.piece_bytes, self.size_bytes)


class Delta(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    base_version: Number
    base_digest: Digest
    base_delta: Digest | None = None
    """Digest of the base's own delta, for who has what that one starts from; None: it has none."""
    blob: Blob

    @property
    def digest(self) -> str:
        base = [self.base_version, self.base_digest, self.base_delta]
        return _digest_of([1, base, _blob_content(self.blob)])


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Literal[1] = 1
    weight_version: Number
    digest: Digest
    tensors: Annotated[tuple[TensorEntry, ...], Meta(max_length=_MAX_TENSORS)]
    aliases: Annotated[dict[Name, Name], Meta(max_length=_MAX_TENSORS)]
    """Other names of tensors that are stored once, such as an output layer tied to the embedding."""
    full: Blob
    delta: Delta | None = None

    @property
    def delta_digest(self) -> str | None:
        return None if self.delta is None else self.delta.digest

    def with_delta_of(self, delta_digest: str | None) -> "Manifest":
        """Return the manifest without its delta, unless that is the one with this digest."""
        is_it = delta_digest is not None and self.delta_digest == delta_digest
        return self if is_it else self.without_delta()

    def without_delta(self) -> "Manifest":
        return replace(self, delta=None)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor before it has a place."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return WIDTH_OF[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of every tensor of a version. Equal specs give equal layouts, whatever their order."""

    tensors: tuple[TensorEntry, ...]
    size_bytes: int


def lay_out(specs: Iterable[TensorSpec]) -> Layout:
    """Lay out tensors. Raises WeightsError for a dtype that cannot be sent and for a repeated name."""
    ordered = list(specs)
    for spec in ordered:
        if spec.dtype not in WIDTH_OF:
            raise WeightsError(f"{spec.name}: cannot send tensors of type {spec.dtype}")
    ordered.sort(key=lambda spec: (-WIDTH_OF[spec.dtype], spec.name))
    if (most := Counter(spec.name for spec in ordered).most_common(1)) and most[0][1] > 1:
        raise WeightsError(f"{most[0][0]:.200}: is there twice")
    tensors, position = [], 0
    for spec in ordered:
        tensors.append(TensorEntry(spec.name, spec.dtype, spec.shape, position, spec.size_bytes))
        position = _aligned(position + spec.size_bytes)
    return Layout(tuple(tensors), position)


def make_manifest(
    weight_version: int,
    layout: Layout,
    aliases: dict[str, str],
    full: Blob,
    delta: Delta | None = None,
) -> Manifest:
    return Manifest(
        weight_version=weight_version,
        digest=content_digest(layout.tensors, aliases, full),
        tensors=layout.tensors,
        aliases=aliases,
        full=full,
        delta=delta,
    )


def content_digest(tensors: Iterable[TensorEntry], aliases: dict[str, str], full: Blob) -> str:
    """Compute the digest of what a version holds; the pieces' digests make it cover every byte."""
    content = [1, [astuple(tensor) for tensor in tensors], sorted(aliases.items()), _blob_content(full)]
    return _digest_of(content)


def _blob_content(blob: Blob) -> list[object]:
    return [blob.size_bytes, blob.piece_bytes, list(blob.digests)]


def _digest_of(content: object) -> str:
    text = msgspec.json.encode(content)
    if not text.isascii() or b"\\" in text:  # where the two may differ, the slower one is the format
        text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    return digest(text)


def dump_manifest(manifest: Manifest) -> bytes:
    """Serialise a manifest. Raises WeightsError if no reader would take it."""
    text = msgspec.json.encode(manifest)
    if len(text) > MAX_MANIFEST_BYTES:
        raise WeightsError(
            f"manifest of version {manifest.weight_version}: has {len(text):,} bytes of at most"
            f" {MAX_MANIFEST_BYTES:,}; larger pieces have fewer digests (weights.piece_mib)"
        )
    return text


_MANIFESTS = msgspec.json.Decoder(Manifest)


def parse_manifest(text: bytes, *, expected_digest: str | None = None) -> Manifest:
    """Read a manifest that may come from anyone, in time and memory in proportion to its length.

    Raises WeightsError if it is malformed, contradicts itself, or is not the one with `expected_digest`.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise WeightsError(f"manifest: has {len(text):,} bytes of at most {MAX_MANIFEST_BYTES:,}")
    try:
        manifest = _MANIFESTS.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WeightsError(f"manifest: {error!s:.200}") from error
    if manifest.digest != content_digest(manifest.tensors, manifest.aliases, manifest.full):
        raise WeightsError(f"manifest of version {manifest.weight_version}: does not match its digest")
    if expected_digest is not None and manifest.digest != expected_digest:
        raise WeightsError(
            f"manifest of version {manifest.weight_version}: has digest {manifest.digest[:12]}…,"
            f" not the announced {expected_digest[:12]}…"
        )
    _check_places(manifest)
    return manifest


def _check_places(manifest: Manifest) -> None:
    blobs = [manifest.full] + ([manifest.delta.blob] if manifest.delta else [])
    for blob in blobs:
        if len(blob.digests) != -(-blob.size_bytes // blob.piece_bytes):
            raise WeightsError("manifest: the number of pieces does not fit the size")
    specs = [TensorSpec(tensor.name, tensor.dtype, tensor.shape) for tensor in manifest.tensors]
    if any(spec.dtype not in WIDTH_OF for spec in specs) or any(
        spec.size_bytes != tensor.size_bytes for spec, tensor in zip(specs, manifest.tensors, strict=True)
    ):
        raise WeightsError("manifest: a tensor's type, shape and size do not fit together")
    layout = lay_out(specs)
    if layout.tensors != manifest.tensors or layout.size_bytes != manifest.full.size_bytes:
        raise WeightsError("manifest: tensors are not laid out as the format says")
    names = {tensor.name for tensor in manifest.tensors}
    for alias, name in manifest.aliases.items():
        if alias in names or name not in names:
            raise WeightsError(f"manifest: {alias:.200} cannot be another name of {name:.200}")


Key = TypeVar("Key")


def runs_of(
    tensors: Iterable[TensorEntry], key: Callable[[TensorEntry], Key]
) -> Iterator[tuple[Key, int, int]]:
    """Yield stretches of a full blob whose tensors have the same key: it, start, and padded end."""
    for value, run in groupby(tensors, key):
        first, *others = run
        start, end = first.start, _aligned((others or [first])[-1].end)
        if start < end:
            yield value, start, end


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def same_layout(manifest: Manifest, other: Manifest) -> bool:
    """Return whether a delta from one to the other is possible."""
    return manifest.tensors == other.tensors and manifest.full.size_bytes == other.full.size_bytes
