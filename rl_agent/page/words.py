"""Elides the words that all texts of a list begin or end with."""

import re
from collections.abc import Sequence
from os.path import commonprefix

MIN_ELIDED = 12
"""Characters that texts have in common at least, for an ellipsis in their place."""
SHOWN_CHARACTERS = 160


def differing(texts: Sequence[str]) -> list[str]:
    """Return the part of each text that differs, with … for whole words that all begin or end with."""
    begin = _common_words(texts)
    end = _common_words([text[begin:][::-1] for text in texts])
    if len(set(texts)) < 2:
        begin = end = 0
    parts = [text[begin : len(text) - end].strip() for text in texts]
    return [
        ("… " if begin else "")
        + part[:SHOWN_CHARACTERS]
        + ("…" if len(part) > SHOWN_CHARACTERS else " …" if end else "")
        for part in parts
    ]


def _common_words(texts: Sequence[str]) -> int:
    """Return how many characters of whole words all texts begin with; 0 where they are few."""
    common = str(commonprefix(texts))  # noqa: RUF071 - of texts, not of paths
    length = max((place.end() for place in re.finditer(r"\s", common)), default=0)
    return length if length >= MIN_ELIDED else 0
