"""Writes a version as a folder that engines read: safetensors files, or an adapter in PEFT's format.

The format allows no gaps between tensors, and a version has some; nor can two names share their bytes, so a
tied tensor is written under each name that is asked for. Memory beyond the version is the folder, and a copy
of the tied tensors while it is written.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from safetensors import SafetensorError

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import BASE, LayerShape
from rl_agent.weights.store.store import FULL, Snapshot
from rl_agent.weights.store.tensor_sources import tensor_at

_PREFIX = "loading-"
_PEFT_PREFIX = "base_model.model."


def model_folder(snapshot: Snapshot, aliases: Collection[str]) -> AbstractContextManager[Path]:
    """Make the folder, beside the version; `aliases` are the names of tied tensors that are to be there, too.

    Raises WeightsError if there is no room.
    """
    return _folder(snapshot, lambda folder: _write(snapshot, aliases, folder / "model.safetensors"))


def adapter_folder(snapshot: Snapshot, layers: Mapping[str, LayerShape]) -> AbstractContextManager[Path]:
    """Make the folder of an adapter, as PEFT would save it; raises like `model_folder`."""
    return _folder(snapshot, lambda folder: _write_adapter(snapshot, layers, folder))


@contextmanager
def _folder(snapshot: Snapshot, write: Callable[[Path], None]) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=snapshot.folder.parent))
    try:
        try:
            write(folder)
        except (OSError, SafetensorError) as error:
            size_bytes = snapshot.manifest.full.size_bytes
            raise WeightsError(f"{folder}: cannot hold {size_bytes} bytes of weights: {error}") from error
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_adapter(snapshot: Snapshot, layers: Mapping[str, LayerShape], folder: Path) -> None:
    from safetensors.torch import save_file

    view = snapshot.map(FULL)
    matrices = [entry for entry in snapshot.manifest.tensors if entry.name != BASE]
    tensors = {_PEFT_PREFIX + entry.name: tensor_at(view, entry) for entry in matrices}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    rank = max(shape.rank for shape in layers.values())  # and alpha: their scale is in the matrices
    modules = sorted({layer.rpartition(".")[2] for layer in layers})
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def _write(snapshot: Snapshot, aliases: Collection[str], path: Path) -> None:
    from safetensors.torch import save_file

    view, tied = snapshot.map(FULL), snapshot.manifest.aliases
    tensors = {entry.name: tensor_at(view, entry) for entry in snapshot.manifest.tensors}
    tensors |= {alias: tensors[tied[alias]].clone() for alias in tied if alias in aliases}
    save_file(tensors, path, metadata={"format": "pt"})
