"""What a weight version is made of; the format is specified in docs/reference/weights-format.md.

    full blob    every tensor once, widest elements first, each at a multiple of 64 bytes, zeros between
    delta blob   the same bytes as a difference from the full blob of an earlier version with the same layout
    manifest     names, dtypes, shapes and places; digests of the pieces; one digest over all that is content

The content digest covers everything but the version number and the delta: two versions with the same digest
hold the same weights, however they came about. The delta has a digest of its own, which is announced beside.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_agent.errors import WeightsError
from rl_agent.weights.checksums import digest
from rl_agent.weights.dtypes import WIDTH_OF

ALIGNMENT = 64
MAX_PIECES = 2**20

Size = Annotated[int, Field(ge=0, lt=2**48)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorEntry(_Record):
    name: str
    dtype: str
    shape: tuple[Size, ...]
    start: Size
    """First byte in the full blob."""
    size_bytes: Size

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


class Blob(_Record):
    """A file that travels in pieces, each with its digest."""

    size_bytes: Size
    piece_bytes: Annotated[int, Field(ge=1, le=2**30)]
    digests: Annotated[tuple[Digest, ...], Field(max_length=MAX_PIECES)]

    def range_of(self, index: int) -> tuple[int, int]:
        start = index * self.piece_bytes
        return start, min(start + self.piece_bytes, self.size_bytes)


class Delta(_Record):
    base_version: Annotated[int, Field(ge=0)]
    base_digest: Digest
    base_delta: Digest | None = None
    """Digest of the base's own delta, for who has what that one starts from; None: it has none."""
    blob: Blob

    @property
    def digest(self) -> str:
        base = [self.base_version, self.base_digest, self.base_delta]
        return _digest_of([1, base, _blob_content(self.blob)])


class Manifest(_Record):
    format: Literal[1] = 1
    weight_version: Annotated[int, Field(ge=0)]
    digest: Digest
    tensors: tuple[TensorEntry, ...]
    aliases: dict[str, str]
    """Other names of tensors that are stored once, such as an output layer tied to the embedding."""
    full: Blob
    delta: Delta | None = None

    @property
    def delta_digest(self) -> str | None:
        return None if self.delta is None else self.delta.digest

    def with_delta_of(self, delta_digest: str | None) -> "Manifest":
        """Without its delta, unless that is the one with this digest."""
        is_it = delta_digest is not None and self.delta_digest == delta_digest
        return self if is_it else self.model_copy(update={"delta": None})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor before it has a place."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        size = WIDTH_OF[self.dtype]
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every tensor of a version lies. Equal specs give equal layouts, whatever their order."""

    tensors: tuple[TensorEntry, ...]
    size_bytes: int


def lay_out(specs: Iterable[TensorSpec]) -> Layout:
    """Raises WeightsError for a dtype that cannot be sent and for a name that comes twice."""
    ordered = list(specs)
    for spec in ordered:
        if spec.dtype not in WIDTH_OF:
            raise WeightsError(f"{spec.name}: cannot send tensors of type {spec.dtype}")
    ordered.sort(key=lambda spec: (-WIDTH_OF[spec.dtype], spec.name))
    names = [spec.name for spec in ordered]
    if len(set(names)) != len(names):
        raise WeightsError(f"{next(name for name in names if names.count(name) > 1)}: is there twice")
    tensors, position = [], 0
    for spec in ordered:
        tensors.append(
            TensorEntry(
                name=spec.name, dtype=spec.dtype, shape=spec.shape, start=position, size_bytes=spec.size_bytes
            )
        )
        position += -(-spec.size_bytes // ALIGNMENT) * ALIGNMENT
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
    """Digest of what a version holds, as canonical JSON; the pieces' digests make it cover every byte."""
    content = [
        1,
        [[t.name, t.dtype, list(t.shape), t.start, t.size_bytes] for t in tensors],
        sorted(aliases.items()),
        _blob_content(full),
    ]
    return _digest_of(content)


def _blob_content(blob: Blob) -> list[object]:
    return [blob.size_bytes, blob.piece_bytes, list(blob.digests)]


def _digest_of(content: object) -> str:
    return digest(json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode())


def dump_manifest(manifest: Manifest) -> bytes:
    return manifest.model_dump_json().encode()


def parse_manifest(text: bytes, *, expected_digest: str | None = None) -> Manifest:
    """Read a manifest that may come from anyone.

    Raises WeightsError if it is malformed, contradicts itself, or is not the one with `expected_digest`.
    """
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise WeightsError(f"manifest: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
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
            raise WeightsError(f"manifest: {alias} cannot be another name of {name}")


def same_layout(one: Manifest, other: Manifest) -> bool:
    """Whether a delta from one to the other is possible."""
    return one.tensors == other.tensors and one.full.size_bytes == other.full.size_bytes
