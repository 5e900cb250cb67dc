"""Defines a weight version that is an adapter alone: low-rank matrices beside the layers of a base model.

    LAYER.lora_A.weight [r, in], LAYER.lora_B.weight [out, r]   the layer's weight is that of the base + B A
    base_model [32] of U8                                       digest of the base model's files

LAYER is the name of the layer in the base model's files. B is scaled by alpha / r already, so that the shapes
tell all that an engine has to know. LoRA: Hu et al., arXiv 2106.09685.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rl_agent.errors import WeightsError
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.manifest import Manifest, TensorEntry

BASE = "base_model"
A, B = ".lora_A.weight", ".lora_B.weight"
DIGEST_BYTES = 32
_PIECE_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The sizes of an adapted layer."""

    rank: int
    inputs: int
    outputs: int


def is_adapter(manifest: Manifest) -> bool:
    """Return whether a version is an adapter alone, and not all weights of a model."""
    return any(tensor.name == BASE for tensor in manifest.tensors)


def adapter_layers(tensors: Iterable[TensorEntry]) -> dict[str, LayerShape]:
    """List the layers that an adapter has matrices for, by name. Raises WeightsError if one is amiss."""
    shapes = {tensor.name: tensor.shape for tensor in tensors if tensor.name != BASE}
    layers = {}
    for name in shapes:
        layer = name.removesuffix(A).removesuffix(B)
        a, b = shapes.get(layer + A, ()), shapes.get(layer + B, ())
        if layer == name or len(a) != 2 or len(b) != 2 or a[0] != b[1]:
            raise WeightsError(f"{name}: is no matrix of an adapter, or does not fit the other one")
        layers[layer] = LayerShape(a[0], a[1], b[0])
    if not layers:
        raise WeightsError("the adapter has no layers")
    return layers


def base_digest(files: Sequence[Path], *, threads: int) -> bytes:
    """Compute the digest of a model's files of weights, whatever their names; at about memory speed.

    Raises OSError for a file that cannot be read.
    """
    digests = []
    with ThreadPoolExecutor(threads, "digest") as pool:
        for path in files:
            with path.open("rb", buffering=0) as file:
                starts = range(0, path.stat().st_size, _PIECE_BYTES)
                # Not mapped: a file that is cut meanwhile would end the process.
                of_piece = partial(_piece_digest, file.fileno())
                digests.append(digest("".join(pool.map(of_piece, starts)).encode()))
    return bytes.fromhex(digest("".join(digests).encode()))


def _piece_digest(descriptor: int, start: int) -> str:
    return digest(os.pread(descriptor, _PIECE_BYTES, start))
