"""Whether the base model is there: a folder, a hub name in the cache, or a hub name that can be fetched."""

import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_agent.errors import ConfigError, PublishError
from rl_agent.plan.disk import can_be_written
from rl_agent.update.weights import read_tensors

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_TIMEOUT_S = 1.5
_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class FoundModel:
    name: str
    """What the engine is told: an absolute folder, or the hub name."""
    folder: Path | None
    """Where the files are; None if they are yet to be fetched."""

    @property
    def size_bytes(self) -> int:
        if self.folder is None:
            return 0
        return sum(path.stat().st_size for glob in _WEIGHTS for path in self.folder.glob(glob))


def find_model(name: str, cache: Path, environ: Mapping[str, str]) -> FoundModel:
    """Raises `ConfigError` if `model_config.base_model` is nowhere to be had."""
    key = f"model_config.base_model={name}"
    folder = Path(name).expanduser()
    if folder.exists() or name.startswith((".", "/", "~")) or not _HUB_NAME.fullmatch(name):
        return FoundModel(str(_checked_folder(key, folder)), _checked_folder(key, folder))
    snapshot = cached_snapshot(name, cache)
    if snapshot is None:
        if not can_be_written(cache):
            raise ConfigError(
                f"{key}: no such folder, not in the cache {cache}, and that cannot be written by this user;"
                " download the model there, or set HF_HOME to a folder that can be written"
            )
        _check_hub(key, name, cache, environ)
    return FoundModel(name, snapshot)


def _checked_folder(key: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"{key}: there is no such folder")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{key}: the folder has no config.json, so it is no model")
    if not any(True for glob in _WEIGHTS for _ in folder.glob(glob)):
        raise ConfigError(f"{key}: the folder has no weights (*.safetensors or *.bin)")
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"{key}: the folder has no tokenizer.json; save the model's fast tokenizer there")
    if any(folder.glob("*.safetensors")):
        try:
            read_tensors(folder)
        except PublishError as error:
            raise ConfigError(f"{key}: {error}; copy or download the model again") from error
    return Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() would follow links


def cached_snapshot(name: str, cache: Path) -> Path | None:
    """The newest snapshot of a hub model that was downloaded to its end."""
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [path.parent for path in snapshots.glob("*/config.json") if _has_weights(path.parent)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _has_weights(folder: Path) -> bool:
    """Whether every file that an index names is there, or any weights where there is no index."""
    for index in folder.glob("*.index.json"):
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return False
        if all((folder / name).exists() for name in names):
            return True
    has_index = any(folder.glob("*.index.json"))
    return not has_index and any(True for glob in _WEIGHTS for _ in folder.glob(glob))


def _check_hub(key: str, name: str, cache: Path, environ: Mapping[str, str]) -> None:
    """Ask the hub, within a deadline that also covers name resolution."""
    if any(
        environ.get(variable, "0") not in ("", "0") for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    ):
        raise ConfigError(f"{key}: not in the cache {cache}, and HF_HUB_OFFLINE is set")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(_ask_hub(name, environ)), daemon=True)
    asking.start()
    asking.join(_HUB_TIMEOUT_S)
    answer = answers[0] if answers else f"no answer within {_HUB_TIMEOUT_S} s"
    if answer:
        raise ConfigError(f"{key}: no such folder, not in the cache {cache}, and the hub says: {answer}")


def _ask_hub(name: str, environ: Mapping[str, str]) -> str:
    """Empty if the model can be fetched, else the reason why not."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    request = urllib.request.Request(f"{endpoint}/api/models/{name}")  # noqa: S310 - the user's endpoint
    if environ.get("HF_TOKEN"):
        request.add_header("Authorization", f"Bearer {environ['HF_TOKEN']}")
    try:
        with urllib.request.urlopen(request, timeout=_HUB_TIMEOUT_S):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason} (a private model needs HF_TOKEN)"
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
