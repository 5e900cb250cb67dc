"""Folds text to words, so that a search for a part of a text finds words, phrases and beginnings of words.
Elides the words that all texts of a list begin or end with.

"The Café has 3.14 apples" ─► " the cafe has 3 14 apples "     the café ─► " the cafe "     appl* ─► " appl"
"""

import re
import unicodedata
from collections.abc import Sequence
from os.path import commonprefix

MIN_PREFIX = 3
MIN_ELIDED = 12
"""Characters that texts have in common at least, for an ellipsis in their place."""
SHOWN_CHARACTERS = 160
_SINGLE = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
"""Writing that has no spaces between words: each character is one."""


class _Folding(dict[int, str]):
    """The folded form of each character, by its code."""

    def __missing__(self, code: int) -> str:
        self[code] = _folded_character(chr(code))
        return self[code]


_FOLDING = _Folding()


def folded(text: str) -> str:
    """Return the words of a text in lower case, without accents, each between two spaces."""
    words = f" {text.translate(_FOLDING)} "
    while "  " in words:  # half the time of split and join
        words = words.replace("  ", " ")
    return words


def needle_of(word: str) -> str:
    """Return the part that a folded text with this word or phrase contains; empty without letter and digit.

    A `*` at the end of a longer word stands for any ending.
    """
    is_beginning = word.endswith("*") and word[-MIN_PREFIX - 1 : -1].isalnum() and len(word) > MIN_PREFIX
    needle = folded(word)
    return (needle[:-1] if is_beginning else needle) if needle != " " else ""


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


def _folded_character(character: str) -> str:
    if _SINGLE.match(character) and character.isalnum():
        return f" {character} "
    parts = unicodedata.normalize("NFKD", character.casefold())
    return "".join(part if part.isalnum() else " " for part in parts if not unicodedata.combining(part))
