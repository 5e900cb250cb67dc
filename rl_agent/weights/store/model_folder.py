"""Writes a version as a folder that any loader of safetensors files can read.

    8 bytes of header length   header: names, types, shapes, places   the bytes of each tensor, without gaps

The format allows no gaps between tensors, and a version has some; nor can two names share their bytes, so a
tied tensor is written under each name that is asked for. Memory beyond the version is the folder alone.
"""

import json
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.weights.format.manifest import TensorEntry
from rl_agent.weights.store.store import FULL, Snapshot

_PREFIX = "loading-"


@contextmanager
def model_folder(snapshot: Snapshot, aliases: Collection[str]) -> Iterator[Path]:
    """The folder, beside the version; `aliases` are the names of tied tensors that are to be there, too.

    Raises WeightsError if there is no room.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=snapshot.folder.parent))
    try:
        try:
            _write(snapshot, aliases, folder / "model.safetensors")
        except OSError as error:
            size_bytes = snapshot.manifest.full.size_bytes
            raise WeightsError(f"{folder}: cannot hold {size_bytes} bytes of weights: {error}") from error
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(snapshot: Snapshot, aliases: Collection[str], path: Path) -> None:
    entries = {entry.name: entry for entry in snapshot.manifest.tensors}
    tied = snapshot.manifest.aliases
    entries |= {alias: entries[tied[alias]] for alias in sorted(tied) if alias in aliases}
    header = json.dumps(_header(entries), separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    view = snapshot.map(FULL)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for entry in entries.values():
            file.write(view[entry.start : entry.end])


def _header(entries: dict[str, TensorEntry]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, entry in entries.items():
        places = [position, position + entry.size_bytes]
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": places}
        position = places[1]
    return header
