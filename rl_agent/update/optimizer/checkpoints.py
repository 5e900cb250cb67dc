"""The checkpoints that a training leaves in its output folder."""

import json
import re
from pathlib import Path

STATE = "trainer_state.json"

_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")


def find_checkpoint(training: Path) -> Path | None:
    """The last finished checkpoint-K by number, else the folder itself if it holds the final model."""
    if not training.is_dir():
        return None
    found = {int(match[1]): training / match[0] for match in map(_match, training.iterdir()) if match}
    for folder in (*(found[step] for step in sorted(found, reverse=True)), training):
        if _is_finished(folder):
            return folder
    return None


def _is_finished(folder: Path) -> bool:
    """Trainer writes its state last, but syncs nothing: after a failure of the disk, files may be empty."""
    try:
        global_step(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    weights = list(folder.glob("*.safetensors"))
    return bool(weights) and all(path.stat().st_size > 0 for path in weights)


def global_step(checkpoint: Path) -> int:
    """Optimizer steps that Trainer had counted."""
    return json.loads((checkpoint / STATE).read_bytes())["global_step"]


def _match(entry: Path) -> re.Match[str] | None:
    return _CHECKPOINT.match(entry.name) if entry.is_dir() else None
