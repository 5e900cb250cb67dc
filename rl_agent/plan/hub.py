"""Finds the base model: a folder, a hub name in the cache, or a hub name that can be fetched.

One plain request asks the hub. `huggingface_hub` takes 0.4 s of processor time to import, and has no deadline
that covers the resolution of names.
"""

import json
import os
import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError, MachineError, PublishError, in_one_line
from rl_agent.http import client as http_client
from rl_agent.plan.disk import can_be_written
from rl_agent.served_model.weights import read_tensors

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_TIMEOUT_S = 1.5
_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class FoundModel:
    name: str
    """The model as the engine gets it: an absolute folder, or the hub name."""
    folder: Path | None
    """Folder of the files; None if they are yet to be fetched."""
    config: Mapping[str, Any] | None
    """Its config.json, of a model that is yet to be fetched what the hub tells of it; None: nothing."""
    files: frozenset[str]
    """Names of its files."""

    @property
    def size_bytes(self) -> int:
        """Size of its weights, which a folder may have in several formats; 0: they are yet to be fetched."""
        folder = self.folder
        if folder is None:
            return 0
        formats = ("model*.safetensors", *_WEIGHTS)
        sizes = (sum(path.stat().st_size for path in folder.glob(glob)) for glob in formats)
        return next(filter(None, sizes), 0)


def find_model(name: str, cache: Path, environ: Mapping[str, str]) -> FoundModel:
    """Find `model_config.base_model`. Raises `ConfigError` if it is nowhere to be had."""
    key = f"model_config.base_model={name}"
    folder = Path(name).expanduser()
    if folder.exists() or name.startswith((".", "/", "~")) or not _HUB_NAME.fullmatch(name):
        checked = _checked_folder(key, folder)
        return _of_folder(key, str(checked), checked)
    snapshot = cached_snapshot(name, cache)
    if snapshot is not None:
        if _is_offline(environ) and not (snapshot / "tokenizer.json").exists():
            raise ConfigError(f"{key}: {snapshot} has no tokenizer.json, and HF_HUB_OFFLINE is set")
        return _of_folder(key, name, snapshot)
    if not can_be_written(cache):
        raise ConfigError(
            f"{key}: no such folder, not in the cache {cache}, and that cannot be written by this user;"
            " download the model there, or set HF_HOME to a folder that can be written"
        )
    return _of_hub(key, name, _check_hub(key, name, cache, environ))


def _of_hub(key: str, name: str, described: Mapping[str, Any]) -> FoundModel:
    """Read the hub's `config`, a part of config.json, and `siblings`; a mirror may leave them out."""
    config, entries = described.get("config"), described.get("siblings")
    listed = entries if isinstance(entries, list) else []
    named = [entry.get("rfilename") for entry in listed if isinstance(entry, dict)]
    files = frozenset(file for file in named if isinstance(file, str))
    if files:
        _check_files(key, files)
    is_described = isinstance(config, dict) and "model_type" in config
    return FoundModel(name, None, config if is_described else None, files)


def _of_folder(key: str, name: str, folder: Path) -> FoundModel:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: its config.json is not readable: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{key}: its config.json is not readable: it is not a JSON object")
    return FoundModel(name, folder, config, frozenset(entry.name for entry in folder.iterdir()))


def _check_files(key: str, files: Collection[str]) -> None:
    """Refuse files that no engine can serve. Raises ConfigError."""
    if "config.json" not in files and "adapter_config.json" in files:
        raise ConfigError(
            f"{key}: is an adapter, not a complete model; merge it into its base model and name that"
        )
    if "config.json" not in files:
        raise ConfigError(f"{key}: the folder has no config.json, so it is not a model")
    if not any(fnmatch(name, glob) for glob in _WEIGHTS for name in files):
        raise ConfigError(f"{key}: the folder has no weights (*.safetensors or *.bin)")
    if "tokenizer.json" not in files:
        raise ConfigError(f"{key}: the folder has no tokenizer.json; save the model's fast tokenizer there")


def _checked_folder(key: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"{key}: there is no such folder")
    _check_files(key, {entry.name for entry in folder.iterdir() if entry.is_file()})
    if any(folder.glob("*.safetensors")):
        try:
            read_tensors(folder)
        except PublishError as error:
            raise ConfigError(f"{key}: {error}; copy or download the model again") from error
    return Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() would follow links


def cached_snapshot(name: str, cache: Path) -> Path | None:
    """Return the newest snapshot of a hub model that was downloaded to its end."""
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    folders = [path.parent for path in snapshots.glob("*/config.json") if _has_weights(path.parent)]
    return max(folders, key=lambda path: path.stat().st_mtime, default=None)


def _has_weights(folder: Path) -> bool:
    """Return whether every file that an index names is there, or any weights where there is no index."""
    for index in folder.glob("*.index.json"):
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return False
        if all((folder / name).exists() for name in names):
            return True
    has_index = any(folder.glob("*.index.json"))
    return not has_index and any(True for glob in _WEIGHTS for _ in folder.glob(glob))


def _is_offline(environ: Mapping[str, str]) -> bool:
    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(environ.get(variable, "0") not in ("", "0") for variable in variables)


def _check_hub(key: str, name: str, cache: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the hub tells of a model, within a deadline that also covers name resolution."""
    if _is_offline(environ):
        raise ConfigError(f"{key}: not in the cache {cache}, and HF_HUB_OFFLINE is set")
    answers: list[str | dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(_ask_hub(name, environ)), daemon=True)
    asking.start()
    asking.join(_HUB_TIMEOUT_S)
    answer = answers[0] if answers else _Unreachable(f"no answer within {_HUB_TIMEOUT_S} s")
    if isinstance(answer, _Unreachable):
        raise MachineError(
            f"{key}: no such folder, not in the cache {cache}, and no hub can be reached: {answer};"
            " connect this machine, or name the folder of a model"
        )
    if isinstance(answer, str):
        raise ConfigError(f"{key}: no such folder, not in the cache {cache}, and the hub says: {answer}")
    return answer


class _Unreachable(str):
    """The reason why there is no answer."""

    __slots__ = ()


def _ask_hub(name: str, environ: Mapping[str, str]) -> str | dict[str, Any]:
    """Return what it tells of a model that can be fetched, else the reason why it cannot."""
    endpoint = environ.get("HF_ENDPOINT") or "https://huggingface.co"
    url, token = f"{endpoint}/api/models/{name}", environ.get("HF_TOKEN")
    try:
        content = http_client.request(url, token=token, timeout_s=_HUB_TIMEOUT_S, uses_proxy=True)
    except http_client.RequestRefused as error:
        return f"{error.status} {error.reason} (a private model needs HF_TOKEN)"
    except OSError as error:
        return _Unreachable(error.strerror or str(error))
    except ValueError as error:
        return in_one_line(error)
    try:
        described = json.loads(content)
    except ValueError:
        return {}
    return described if isinstance(described, dict) else {}
