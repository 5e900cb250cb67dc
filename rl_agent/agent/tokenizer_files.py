"""Reads a model folder's tokenizer, its chat template, and the tokens that end a response."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rl_agent.errors import ConfigError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
)
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The parts of a model that make prompts and read responses."""

    tokenizer: Tokenizer
    chat_template: str
    eos_tokens: dict[int, str]
    """The tokens at which an engine ends a response, and their texts; empty for one the tokenizer lacks."""
    named_tokens: dict[str, str]
    """Texts of `bos_token` and the like, which chat templates may use."""


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """Read a model folder. Raises ConfigError, and what the library raises for no tokenizer."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{folder}: there is no tokenizer.json; save the model's fast tokenizer there")
    tokenizer = Tokenizer.from_file(str(path))
    settings = _read_json(folder / "tokenizer_config.json")
    named = {name: _token_text(settings[name]) for name in _SPECIAL if settings.get(name)}
    ids = _eos_ids(folder)
    if "eos_token" in named and (token_id := tokenizer.token_to_id(named["eos_token"])) is not None:
        ids.add(token_id)
    eos_tokens = {token_id: tokenizer.id_to_token(token_id) or "" for token_id in sorted(ids)}
    return TokenizerFiles(tokenizer, _chat_template(folder, settings), eos_tokens, named)


def model_folder(name: str) -> Path:
    """Return the folder of a model's small files; a hub name is looked up, and fetched if need be."""
    return Path(name) if Path(name).is_dir() else _hub_folder(name)


def _hub_folder(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = list(TOKENIZER_FILES)
    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            cached = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
            if (cached / "tokenizer.json").is_file():
                return cached
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        raise ConfigError(
            f"model_config.base_model={name}: neither a folder nor a model of the hub or its cache"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    template = _read_json(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not template:
        raise ConfigError(f"{folder}: the model has no chat template; add chat_template.jinja")
    return template


def _eos_ids(folder: Path) -> set[int]:
    """Return the ids that the model's files list, as engines read them. Raises ConfigError."""
    path = folder / "generation_config.json"
    if not path.is_file():
        path = folder / "config.json"
    config = _read_json(path)
    listed = config.get("eos_token_id")
    if listed is None and isinstance(config.get("text_config"), dict):
        listed = config["text_config"].get("eos_token_id")
    ids = listed if isinstance(listed, list) else [] if listed is None else [listed]
    if not all(type(one) is int and one >= 0 for one in ids):
        raise ConfigError(
            f"{path}: eos_token_id={listed!r:.80}: a token's number is wanted, or a list of them"
        )
    return set(ids)
