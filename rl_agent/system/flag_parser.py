"""Reads a command line with argparse; a mistake in it is one line that names the flag.

argparse prints its usage, often 20 lines, before the line that matters, takes the last of two equal flags
without a word, and accepts abbreviations that a new flag makes ambiguous.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rl_agent.errors import UsageError

_UNKNOWN = "unrecognized arguments: "
_MISSING = "the following arguments are required: "
_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
"""A number below 0; argparse takes one with an exponent for a flag."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """A help text whose description stays as it is written, with the kind of each value: PATH, N, SECONDS."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        if action.dest.endswith("_s"):
            return "SECONDS"
        names: dict[Any, str] = {Path: "PATH", int: "N", float: "NUMBER"}
        kind = getattr(action.type, "__annotations__", {}).get("return", action.type)
        return names.get(kind) or super()._get_default_metavar_for_optional(action)


class FlagParser(argparse.ArgumentParser):
    """A parser of whole flags, each given once unless it may be repeated; it raises UsageError."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**({"formatter_class": _Help} | settings), allow_abbrev=False)
        self._words: list[str] = []

    def _parse_optional(self, arg_string: str) -> Any:
        """Return what argparse makes of a word that may be a flag; None for a value."""
        is_value = _NEGATIVE.fullmatch(arg_string) and not self._has_negative_number_optionals
        return None if is_value else super()._parse_optional(arg_string)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        words = sys.argv[1:] if args is None else list(args)
        self._words = words
        self._refuse_repeated(words)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            word = message.removeprefix(_UNKNOWN).split(" ")[0]
            message = self._unknown(word)
        elif message.startswith(_MISSING) and (word := self._first_unknown()):
            message = f"{self._unknown(word)}; {message}"  # often the missing one, misspelt
        raise UsageError(f"{message.removeprefix('argument ')}; see --help")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert one word, as argparse does; an empty path would be the current folder."""
        if action.type is Path and not arg_string:
            raise argparse.ArgumentError(action, "is empty: give a path")
        return super()._get_value(action, arg_string)

    def _refuse_repeated(self, words: Sequence[str]) -> None:
        """Refuse a flag whose last value argparse would take without a word."""
        seen = set()
        for word in words[: words.index("--")] if "--" in words else words:
            action = self._option_string_actions.get(word.partition("=")[0])
            if isinstance(action, argparse._StoreAction):
                if action.dest in seen:
                    self.error(f"{word.partition('=')[0]} is given twice")
                seen.add(action.dest)

    def _unknown(self, word: str) -> str:
        return f"unknown argument {word!r}{near_flag(word, self._flags())}"

    def _first_unknown(self) -> str:
        """Return the first word that looks like a flag and is none; empty if there is no such word."""
        words = self._words[: self._words.index("--")] if "--" in self._words else self._words
        flags = self._flags()
        wrong = (w for w in words if w.startswith("--") and " " not in w and w.partition("=")[0] not in flags)
        return next(wrong, "")

    def _flags(self) -> set[str]:
        """Return all flags, those of its actions too."""
        flags = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    flags |= set(parser._option_string_actions)
        return flags


def near_flag(word: str, flags: Collection[str]) -> str:
    """Return `; did you mean --x?` where a flag is near, else nothing."""
    near = difflib.get_close_matches(word.partition("=")[0], flags, n=1)
    return f"; did you mean {near[0]}?" if near else ""
