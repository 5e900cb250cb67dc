"""Reads the tensors of a model folder from the headers of its safetensors files.

A safetensors file is 8 bytes of header length, a JSON header, and the tensors' bytes. The library safetensors
is not used, for it tells no byte ranges: bytes are compared and checked here in pieces, without torch.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent.errors import PublishError

INDEX = "model.safetensors.index.json"
CHUNK_BYTES = 64 * 2**20

_BYTES_OF = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
_EXPONENT = {"F64": 0x7FF0000000000000, "F32": 0x7F800000, "BF16": 0x7F80, "F16": 0x7C00}
"""Bits that are all set in infinities and NaNs, and in nothing else."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Type, shape and byte range of a tensor."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""
    end: int

    @property
    def values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the headers of a model folder; raises PublishError for a missing, cut or other file."""
    index = folder / INDEX
    if index.is_file():
        names = sorted(set(_read_json(index)["weight_map"].values()))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise PublishError(f"{folder}: holds no safetensors file")
    return {key: tensor for name in names for key, tensor in _read_header(folder / name).items()}


def same_values(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bytes, type and shape."""
    if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
        return False
    with tensor.file.open("rb") as first, other.file.open("rb") as second:
        first.seek(tensor.start)
        second.seek(other.start)
        left = tensor.end - tensor.start
        while left > 0:
            size = min(left, CHUNK_BYTES)
            if first.read(size) != second.read(size):
                return False
            left -= size
    return True


def _read_header(path: Path) -> dict[str, Tensor]:
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > size_bytes:
                raise PublishError(f"{path}: is cut short in its header")
            header: dict[str, Any] = json.loads(file.read(header_bytes))
    except (OSError, struct.error, ValueError) as error:
        raise PublishError(f"{path}: is not a readable safetensors file: {error}") from error
    header.pop("__metadata__", None)
    first = 8 + header_bytes
    tensors = {
        name: Tensor(
            path,
            entry["dtype"],
            tuple(entry["shape"]),
            first + entry["data_offsets"][0],
            first + entry["data_offsets"][1],
        )
        for name, entry in header.items()
    }
    needed_bytes = max((tensor.end for tensor in tensors.values()), default=first)
    if size_bytes < needed_bytes:
        raise PublishError(f"{path}: is cut short: {size_bytes} of {needed_bytes} bytes")
    return tensors


def first_not_finite(tensors: dict[str, Tensor]) -> str | None:
    """Name a tensor that contains NaN or infinity; None if all are finite."""
    return next((name for name, tensor in tensors.items() if not all(_are_finite(tensor))), None)


def _are_finite(tensor: Tensor) -> Iterator[bool]:
    import numpy as np

    exponent = _EXPONENT.get(tensor.dtype)
    if exponent is None:  # integers have neither, 8-bit floats are not trained
        return
    unsigned = np.dtype(f"<u{_BYTES_OF[tensor.dtype]}")
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        left = tensor.end - tensor.start
        while left > 0:
            chunk = np.frombuffer(file.read(min(left, CHUNK_BYTES)), dtype=unsigned)
            left -= chunk.nbytes
            yield not bool(np.any((chunk & unsigned.type(exponent)) == exponent))


def parameters(tensors: dict[str, Tensor]) -> int:
    """Count the values of all tensors."""
    return sum(tensor.values for tensor in tensors.values())


def size_bytes(tensors: dict[str, Tensor]) -> int:
    """Add up the sizes of all tensors."""
    return sum(tensor.end - tensor.start for tensor in tensors.values())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        return content
    except (OSError, ValueError) as error:
        raise PublishError(f"{path}: cannot be read: {error}") from error
