"""A small base model and adapters for it, for the tests of `rl_agent.weights`."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from rl_agent.weights.format.adapter import BASE, A, B, base_digest
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import files_in
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import settings

LAYER = "model.layers.0.mlp.up_proj"


def make_base(folder: Path, *, seed: int = 0, outputs: int = 6) -> Path:
    folder.mkdir()
    weight = torch.randn(outputs, 4, generator=torch.Generator().manual_seed(seed))
    save_file({f"{LAYER}.weight": weight}, folder / "model.safetensors")
    return folder


def publish_adapter(store: SnapshotStore, base: Path, weight_version: int = 1, *, rank: int = 2) -> Snapshot:
    digest = base_digest(files_in(base), threads=2)
    tensors = {
        LAYER + A: torch.full((rank, 4), float(weight_version)),
        LAYER + B: torch.ones(6, rank),
        BASE: torch.frombuffer(bytearray(digest), dtype=torch.uint8),
    }
    return Publisher(store, settings()).publish(weight_version, StateDict.of(tensors))
