"""Reads a version's tensors from a checkpoint folder or a model in memory, one by one.

A source says what tensors there are before it gives the first, so that the layout is known and each tensor is
written to its place as it comes. Memory beyond the snapshot itself is one tensor.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl_agent.errors import WeightsError
from rl_agent.system.files import read_object
from rl_agent.weights.format.dtypes import FLOATS, dtype_name, torch_dtype
from rl_agent.weights.format.manifest import TensorEntry, TensorSpec

if TYPE_CHECKING:
    import torch


class TensorSource(Protocol):
    @property
    def specs(self) -> list[TensorSpec]:
        """The tensors that will come, each once."""

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of tensors that come once."""

    def tensors(self) -> Iterator[tuple[str, "torch.Tensor"]]: ...


@dataclass(frozen=True)
class Checkpoint:
    """The safetensors files of a model folder."""

    files: dict[str, Path]
    """Tensor name -> file."""
    specs: list[TensorSpec]
    aliases: dict[str, str]

    @classmethod
    def of(cls, folder: Path) -> "Checkpoint":
        """List the tensors of a folder. Raises WeightsError if it holds no readable safetensors files."""
        from safetensors import SafetensorError, safe_open

        files, specs = {}, []
        try:
            for path in files_in(folder):
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - not a dict
                        entry = file.get_slice(name)
                        files[name] = path
                        specs.append(TensorSpec(name, entry.get_dtype(), tuple(entry.get_shape())))
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise WeightsError(f"{folder}: cannot be read: {error}") from error
        if not files:
            raise WeightsError(f"{folder}: holds no safetensors file")
        source = cls(files, specs, {})
        return replace(source, aliases=source._ties(folder))

    def _ties(self, folder: Path) -> dict[str, str]:
        """Find an output layer that the configuration ties to the embedding, if its bytes agree."""
        heads = [spec for spec in self.specs if spec.name.endswith("lm_head.weight")]
        tables = [spec for spec in self.specs if spec.name.endswith("embed_tokens.weight")]
        if len(heads) != 1 or len(tables) != 1 or not _is_tied(folder / "config.json"):
            return {}
        head, table = heads[0], tables[0]
        same = (head.dtype, head.shape) == (table.dtype, table.shape)
        if same and self._read(head.name).equal(self._read(table.name)):
            self.specs.remove(head)
            return {head.name: table.name}
        return {}

    def tensors(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        from safetensors import safe_open

        for path, specs in groupby(self.specs, lambda spec: self.files[spec.name]):
            with safe_open(path, framework="pt") as file:  # once: its header may name thousands
                for spec in specs:
                    yield spec.name, file.get_tensor(spec.name)

    def _read(self, name: str) -> "torch.Tensor":
        from safetensors import safe_open

        with safe_open(self.files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor


def local_folder(model: str) -> Path | None:
    """Find the folder of a model: its path, or the hub cache's; None where it was never downloaded."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def tensor_at(view: memoryview, entry: TensorEntry) -> "torch.Tensor":
    """View a tensor of a full blob, without a copy; writable if the view is."""
    return tensor_in(view[entry.start : entry.end], entry)


@dataclass(frozen=True)
class StateDict:
    """A model in memory, on any device. Tensors that share their memory are tied and come once.

    Sharded tensors (DTensor) are gathered one at a time; that is a collective, so every rank of the trainer
    goes through `tensors()`, also those that write nothing. Ties between sharded tensors are not seen.
    """

    state: Mapping[str, Any]
    tied: Mapping[str, str]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "StateDict":
        first_with: dict[tuple[Any, ...], str] = {}
        tied: dict[str, str] = {}
        for name, tensor in state.items():
            if hasattr(tensor, "full_tensor") or tensor.numel() == 0:
                continue
            memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            if first_with.setdefault(memory, name) != name:
                tied[name] = first_with[memory]
        return cls(state, tied)

    @property
    def specs(self) -> list[TensorSpec]:
        return [
            TensorSpec(name, dtype_name(tensor), tuple(tensor.shape))
            for name, tensor in self.state.items()
            if name not in self.tied
        ]

    @property
    def aliases(self) -> dict[str, str]:
        return dict(self.tied)

    def tensors(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        for name, tensor in self.state.items():
            if name not in self.tied:
                tensor = tensor.detach()
                yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def tensor_in(place: memoryview, entry: TensorEntry) -> "torch.Tensor":
    """View the tensor whose bytes are all of a place, without a copy."""
    import torch

    dtype = torch_dtype(entry.dtype)
    if not place:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(place, dtype=torch.uint8).view(dtype).view(entry.shape)


def tensor_bytes(tensor: "torch.Tensor") -> memoryview:
    """Return a tensor's bytes, from whatever device and layout; a copy only where needed."""
    import torch

    if tensor.numel() == 0:
        return memoryview(b"")
    flat: Any = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def served_as(spec: TensorSpec, serving_dtype: str | None) -> TensorSpec:
    """Return the spec of a tensor after the cast to the serving dtype."""
    if serving_dtype is None or spec.dtype not in FLOATS:
        return spec
    return replace(spec, dtype=serving_dtype)


def files_in(folder: Path) -> list[Path]:
    """List the files of weights of a model folder, those that its index names if it has one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    return sorted(folder.glob("*.safetensors"))


def _is_tied(config: Path) -> bool:
    settings = read_object(config)
    return bool(
        settings.get("tie_word_embeddings", settings.get("text_config", {}).get("tie_word_embeddings"))
    )
