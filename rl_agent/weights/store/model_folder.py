"""Writes a version as a folder that any loader of safetensors files can read.

The format allows no gaps between tensors, and a version has some; nor can two names share their bytes, so a
tied tensor is written under each name that is asked for. Memory beyond the version is the folder, and a copy
of the tied tensors while it is written.
"""

import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from rl_agent.errors import WeightsError
from rl_agent.weights.store.store import FULL, Snapshot
from rl_agent.weights.store.tensor_sources import tensor_at

_PREFIX = "loading-"


@contextmanager
def model_folder(snapshot: Snapshot, aliases: Collection[str]) -> Iterator[Path]:
    """Make the folder, beside the version; `aliases` are the names of tied tensors that are to be there, too.

    Raises WeightsError if there is no room.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=snapshot.folder.parent))
    try:
        try:
            _write(snapshot, aliases, folder / "model.safetensors")
        except (OSError, SafetensorError) as error:
            size_bytes = snapshot.manifest.full.size_bytes
            raise WeightsError(f"{folder}: cannot hold {size_bytes} bytes of weights: {error}") from error
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(snapshot: Snapshot, aliases: Collection[str], path: Path) -> None:
    from safetensors.torch import save_file

    view, tied = snapshot.map(FULL), snapshot.manifest.aliases
    tensors = {entry.name: tensor_at(view, entry) for entry in snapshot.manifest.tensors}
    tensors |= {alias: tensors[tied[alias]].clone() for alias in tied if alias in aliases}
    save_file(tensors, path, metadata={"format": "pt"})
