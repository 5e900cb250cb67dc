"""Words such as `key=value`: what each asks for, and the value that it stands for.

A value that Hydra's grammar reads as a number, boolean, null, list, dict, quoted string or interpolation
is that value. Anything else is the text exactly as it was typed: `x;cmd`, `$(cmd)`, quotes, commas, spaces
and line breaks need no second quoting for Hydra.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rl_agent.errors import UsageError
from rl_agent.system.terminal import one_line

_WORD = re.compile(
    r"(?P<prefix>\+\+|\+|~)?(?P<key>[A-Za-z_][\w./@$-]*)(?P<assigned>=(?P<value>.*))?", re.DOTALL
)
COMMAND_LINE = "the command line"
ENVIRONMENT = "HYDRA_OVERRIDES"

GROUP_KEYS = {"model": "model@model_config", "env": "env@env_config", "judge": "judge@openai_config"}
"""Short names of the config groups that live under another key."""

MAX_PARSED = 4096
"""Characters that Hydra's grammar is asked to read."""


class Kind(Enum):
    SET = ""
    ADD = "+"
    FORCE = "++"
    DELETE = "~"


class Text(str):
    """A value that is set as it was typed: nothing in it is expanded."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Override:
    """One word, split into the change that it asks for."""

    kind: Kind
    key: str
    raw: str
    """Everything behind the first `=`, as typed."""
    word: str
    source: str
    name: str
    """The key in full: config groups that live under another key have short ones."""
    is_literal: bool = False
    """The value is text, whatever Hydra's grammar would read in it."""

    @property
    def shown(self) -> str:
        """Return the word on one line, for messages."""
        return one_line(self.word)


def has_broken_bytes(text: str) -> bool:
    """Return whether an argument held bytes that are not UTF-8 (Python carries them as lone surrogates)."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def is_override(word: str) -> bool:
    """Return whether a word of the command line is meant as an override (good or bad) rather than a flag."""
    return not word.startswith("-") and ("=" in word or word.startswith(("+", "~")))


def parse_override(word: str, source: str, short_names: Mapping[str, str] = GROUP_KEYS) -> Override:
    """Split `word`; raises `UsageError` if it has no readable key, or no value where one is needed."""
    match = _WORD.fullmatch(word)
    if match is None:
        raise UsageError(f"{word!r} ({source}): an override is key=value, +key=value, ++key=value or ~key")
    if has_broken_bytes(word):
        raise UsageError(f"{match['key']} ({source}): the value is not valid UTF-8")
    kind = Kind(match["prefix"] or "")
    if kind is not Kind.DELETE and match["assigned"] is None:
        raise UsageError(f"{word!r} ({source}): no value; write {one_line(word)}=VALUE")
    key = match["key"]
    return Override(kind, key, match["value"] or "", word, source, short_names.get(key, key))


def reject_duplicates(overrides: Iterable[Override]) -> None:
    """Hydra keeps the last of two overrides of one key; here that is an error that names both."""
    seen: dict[str, Override] = {}
    for override in overrides:
        earlier = seen.setdefault(override.name, override)
        if earlier is not override:
            raise UsageError(
                f"{override.name} is set twice: {earlier.word!r} ({earlier.source}) and"
                f" {override.word!r} ({override.source}); keep one"
            )


def read_value(raw: str) -> Any:
    """Return the value `raw` stands for: what Hydra's grammar says, or `Text(raw)`; a long one is text."""
    if len(raw) <= MAX_PARSED:
        return _parsed(raw)
    if raw.startswith(("[", "{")):
        raise UsageError(f"{raw[:40]}...: a list or dict in a word has at most {MAX_PARSED} characters")
    return Text(raw)


@functools.lru_cache(maxsize=256)
def _parsed(raw: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={raw}")
    except (HydraException, ValueError, RecursionError):
        return Text(raw)
    if parsed.is_sweep_override():
        return Text(raw)
    value = parsed.value()
    is_quoted = raw.startswith(("'", '"'))
    if isinstance(value, str) and not is_quoted and "${" not in value:
        return Text(raw)
    return value
