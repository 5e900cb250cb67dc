"""Small weight versions for the tests of `rl_agent.weights`."""

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.weights.format.delta import decode_delta
from rl_agent.weights.format.manifest import TensorEntry
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import FULL, Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import tensor_at
from tests.support.weight_transfers import StateDict, weights_config

PIECE_BYTES = 4096


def settings(mode: str = "always", **changes: Any) -> WeightsConfig:
    delta = {"delta": mode, "link_gbit_per_s": 8.0}
    return weights_config(PIECE_BYTES, **delta | changes)


def random_state(seed: int = 0, rows: int = 100) -> dict[str, torch.Tensor]:
    """Tensors of several types and odd shapes, an empty one and a scalar among them."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "embed.weight": normal(rows, 33).to(torch.bfloat16),
        "norm.weight": normal(7),
        "scale": normal(()),
        "empty": torch.empty(0, 5, dtype=torch.float16),
        "experts.weight": normal(3, 5, 7).to(torch.float8_e4m3fn),
        "mask": normal(13) > 0,
        "counts": torch.arange(9),
    }


def small_step(state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """A state in which a few bf16 values moved by one unit in the last place."""
    generator = torch.Generator().manual_seed(seed)
    moved = {name: tensor.clone() for name, tensor in state.items()}
    bits = moved["embed.weight"].view(torch.int16)
    bits += (torch.rand(bits.shape, generator=generator) < 0.03).to(torch.int16)
    return moved


def open_store(root: Path, keep_versions: int = 3) -> SnapshotStore:
    return SnapshotStore(root, keep_versions=keep_versions)


def publish_steps(root: Path, count: int, *, rows: int = 100, mode: str = "always") -> SnapshotStore:
    """A store with versions 1…count, each a small step from the one before."""
    store = open_store(root, keep_versions=9)
    publisher = Publisher(store, settings(mode))
    state = random_state(rows=rows)
    for weight_version in range(1, count + 1):
        publisher.publish(weight_version, StateDict.of(state))
        state = small_step(state, weight_version)
    return store


def state_of(snapshot: Snapshot) -> dict[str, torch.Tensor]:
    view = snapshot.map(FULL)
    return {entry.name: tensor_at(view, entry) for entry in snapshot.manifest.tensors}


def same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
        return False
    flat = [each.contiguous().reshape(-1).view(torch.uint8) for each in (tensor, other)]
    return bool(flat[0].equal(flat[1]))


def with_delta(delta: bytes | memoryview, base: memoryview, tensors: Sequence[TensorEntry]) -> bytearray:
    """Return what a delta makes of its base."""
    target = bytearray(len(base))

    def write(start: int, content: memoryview) -> None:
        target[start : start + len(content)] = content

    decode_delta(memoryview(delta), base, write, tensors, threads=2)
    return target


@contextmanager
def in_a_mebibyte() -> Iterator[None]:
    """Fail if what runs inside takes a mebibyte of memory at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
