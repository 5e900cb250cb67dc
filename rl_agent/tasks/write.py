"""Writes task files, whole or not at all."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError
from rl_agent.system.files import write_whole

Lines = Iterable[Mapping[str, Any]]


def write_lines(path: Path, lines: Lines) -> None:
    """Replace `path` by one JSON object per line."""
    write_whole(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def write_splits(out: Path, files: Mapping[str, Lines]) -> None:
    """Replace the task file of each split in a folder. Raises ConfigError that names --out."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for split, lines in files.items():
            write_lines(out / f"{split}.jsonl", lines)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
