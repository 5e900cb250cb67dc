"""Gives the weights of a policy as engines and model folders have them: the tensors of its folder's files.

An adapter may go to engines alone; a model folder always gets it merged.

Weights are gathered one at a time. That is a collective, so every rank of a row goes through them, also those
that write nothing. Beyond what is written, rank 0 holds one weight, for a model folder one file in memory.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rl_agent.served_model.weights import INDEX
from rl_agent.system.files import remove, sync, sync_tree
from rl_agent.trainer.grpo.model import lora
from rl_agent.trainer.grpo.model.parallel import Ranks, whole
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.weights.format.adapter import BASE, DIGEST_BYTES, A, B
from rl_agent.weights.format.dtypes import dtype_name, torch_dtype
from rl_agent.weights.format.manifest import TensorSpec
from rl_agent.weights.store.tensor_sources import TensorSource

_COPIED = ("*.json", "*.jinja", "*.txt", "*.model")
"""Tokenizer, chat template and settings."""
_FILE_BYTES = 5 * 10**9
"""The largest size of a file of weights."""


class ServedWeights:
    """A `TensorSource` of trained weights in `dtype`, and of what is not trained as it is in its file."""

    def __init__(self, policy: PolicyModel, dtype: torch.dtype) -> None:
        self._files = policy.files
        weights = lora.served_weights(policy.model)
        self._weights = {name: weights[name] for name in weights if not self._files.is_kept(name)}
        self._dtype = dtype_name(torch.empty(0, dtype=dtype))

    @property
    def specs(self) -> list[TensorSpec]:
        trained = [
            TensorSpec(name, self._dtype, tuple(part.shape))
            for weight, tensor in self._weights.items()
            for name, part in self._files.divide(weight, torch.empty(tensor.shape, device="meta"))
        ]
        return trained + [TensorSpec(name, kept.dtype, kept.shape) for name, kept in self._files.kept.items()]

    @property
    def aliases(self) -> dict[str, str]:
        """Empty: of tied weights only the first is a parameter."""
        return {}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors in any type: who writes them casts them to that of their spec."""
        for weight, tensor in self._weights.items():
            yield from self._files.divide(weight, whole(tensor.detach()))
        for name, kept in self._files.kept.items():
            with safe_open(kept.file, framework="pt") as file:
                yield name, file.get_tensor(name)


class ServedAdapter:
    """A `TensorSource` of an adapter alone, in `dtype`, for the model whose files have the digest."""

    def __init__(self, policy: PolicyModel, base_digest: bytes, dtype: torch.dtype) -> None:
        self._layers = lora.adapter_layers(policy.model, policy.files)
        self._base_digest = base_digest
        self._dtype = dtype_name(torch.empty(0, dtype=dtype))

    @property
    def specs(self) -> list[TensorSpec]:
        matrices = [
            TensorSpec(name + ending, self._dtype, tuple(matrix.shape))
            for name, layer in self._layers.items()
            for ending, matrix in ((A, layer.a), (B, layer.b))
        ]
        return [*matrices, TensorSpec(BASE, "U8", (DIGEST_BYTES,))]

    @property
    def aliases(self) -> dict[str, str]:
        return {}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the matrices, those B with the adapter's scale in them."""
        for name, layer in self._layers.items():
            yield name + A, whole(layer.a.detach())
            yield name + B, whole(layer.b.detach()) * layer.scaling
        yield BASE, torch.tensor(list(self._base_digest), dtype=torch.uint8)


def served_source(policy: PolicyModel, base_digest: bytes | None, dtype: torch.dtype) -> TensorSource:
    """Return what engines get: all weights, or the adapter alone for the model with the digest."""
    if base_digest is None:
        return ServedWeights(policy, dtype)
    return ServedAdapter(policy, base_digest, dtype)


def export(policy: PolicyModel, ranks: Ranks, base: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write what transformers and vLLM load; `base` gives all but the weights. The folder appears whole."""
    source = ServedWeights(policy, dtype)
    if ranks.rank != 0:
        for _ in source.tensors():  # a collective: what this rank holds goes to rank 0
            pass
        return
    growing = folder.with_name(folder.name + ".tmp")
    remove(growing)
    growing.mkdir(parents=True)
    for pattern in _COPIED:
        for file in base.glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copy2(file, growing / file.name)
    _write_config(base, dtype, growing)
    write_tensors(source, growing)
    sync_tree(growing)
    remove(folder)
    growing.rename(folder)
    sync(folder.parent)


def _write_config(base: Path, dtype: torch.dtype, folder: Path) -> None:
    """Write the configuration as it was, but for the type of the weights."""
    config = json.loads((base / "config.json").read_bytes())
    for section in (config, config.get("text_config") or {}):
        section.pop("torch_dtype", None)
        section["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_tensors(source: ServedWeights, folder: Path, *, file_bytes: int = _FILE_BYTES) -> None:
    """Write safetensors files of about `file_bytes` each, one after the other."""
    specs = {spec.name: spec for spec in source.specs}
    split = split_state_dict_into_shards_factory(
        specs,
        get_storage_size=lambda spec: spec.size_bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=file_bytes,
    )
    filling: dict[str, dict[str, Tensor]] = {name: {} for name in split.filename_to_tensors}
    for name, tensor in source.tensors():
        file = split.tensor_to_filename[name]
        dtype = torch_dtype(specs[name].dtype)
        filling[file][name] = tensor.to("cpu", dtype, copy=True).contiguous()
        if len(filling[file]) == len(split.filename_to_tensors[file]):
            save_file(filling.pop(file), folder / file, metadata={"format": "pt"})
    assert not filling
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
