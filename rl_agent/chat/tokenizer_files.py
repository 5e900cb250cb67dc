"""Reads a model folder's tokenizer, its chat template, and the tokens that end a response.

Tokens may lie beside `tokenizer.json`, in `tokenizer_config.json` and two older files. They are added in the
order in which transformers adds them, so that a prompt has the ids that engines and trainers know.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from rl_agent.errors import ConfigError, in_one_line
from rl_agent.system.files import load_object

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
)
_CONTENTS = TOKENIZER_FILES[:4]
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""Fields of an added token."""


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
    """Read a model folder. Raises ConfigError that names a file which is damaged or not there."""
    settings = load_object(folder / "tokenizer_config.json")
    tokenizer = load_tokenizer(folder)
    named = {name: _token_text(settings[name]) for name in _SPECIAL if settings.get(name)}
    ids = _eos_ids(folder)
    if "eos_token" in named and (token_id := tokenizer.token_to_id(named["eos_token"])) is not None:
        ids.add(token_id)
    eos_tokens = {token_id: tokenizer.id_to_token(token_id) or "" for token_id in sorted(ids)}
    return TokenizerFiles(tokenizer, _chat_template(folder, settings), eos_tokens, named)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read `tokenizer.json` and the tokens beside it. Raises ConfigError that names a file.

    Versions of one model share a tokenizer, which nobody may change: a large one takes half a second.
    """
    if not (folder / _CONTENTS[0]).is_file():
        raise ConfigError(f"{folder}: there is no tokenizer.json; save the model's fast tokenizer there")
    files = [folder / name for name in _CONTENTS]
    try:
        return _tokenizer_of(*(file.read_bytes() if file.is_file() else b"{}" for file in files))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        for file in files[1:]:
            load_object(file)  # raises if it is this one that is damaged
        raise ConfigError(
            f"{files[0]}: {in_one_line(error)}; save the tokenizer anew with transformers"
        ) from error


@lru_cache(maxsize=2)
def _tokenizer_of(content: bytes, settings_json: bytes, special_json: bytes, added_json: bytes) -> Tokenizer:
    """Make the tokenizer of the contents of `_CONTENTS`. Raises various errors for those that are damaged."""
    tokenizer, settings = Tokenizer.from_buffer(content), json.loads(settings_json)
    numbered = settings.get("added_tokens_decoder")
    if numbered is None:  # as older releases of transformers wrote it
        settings, older = settings | json.loads(special_json), json.loads(added_json)
        special = {_token_text(token) for token in _named(settings)}
        numbered = {str(n): {"content": text, "special": text in special} for text, n in older.items()}
    by_number = [_added(token) for _, token in sorted(numbered.items(), key=lambda item: int(item[0]))]
    tokenizer.add_tokens([*by_number, *(_added(token, is_special=True) for token in _named(settings))])
    for number, token in numbered.items():
        if (token_id := tokenizer.token_to_id(token["content"])) != int(number):
            raise ValueError(
                f"{token['content']!r} is token {number} by the files beside it and {token_id} with it"
            )
    return tokenizer


def _named(settings: Mapping[str, Any]) -> list[str | dict[str, Any]]:
    """List the special tokens that settings name, in the order of transformers."""
    named = [settings[name] for name in _SPECIAL if settings.get(name)]
    for more in (settings.get(name) or [] for name in _MORE_SPECIAL):
        named += more.values() if isinstance(more, dict) else more
    return named


def _added(token: str | dict[str, Any], *, is_special: bool = False) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=is_special)
    flags = {name: bool(token[name]) for name in _FLAGS if name in token}
    return AddedToken(token["content"], **flags | ({"special": True} if is_special else {}))


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


def _token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str:
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        try:
            return own_file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{own_file}: cannot be read ({error}); restore the file") from error
    older = load_object(folder / "chat_template.json")
    template = older.get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not template:
        raise ConfigError(f"{folder}: the model has no chat template; add chat_template.jinja")
    return str(template)


def _eos_ids(folder: Path) -> set[int]:
    """Return the ids that the model's files list, as engines read them. Raises ConfigError."""
    path = folder / "generation_config.json"
    if not path.is_file():
        path = folder / "config.json"
    config = load_object(path)
    listed = config.get("eos_token_id")
    if listed is None and isinstance(config.get("text_config"), dict):
        listed = config["text_config"].get("eos_token_id")
    ids = listed if isinstance(listed, list) else [] if listed is None else [listed]
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise ConfigError(
            f"{path}: eos_token_id={listed!r:.80}: expected a token's number, or a list of numbers"
        )
    return set(ids)
