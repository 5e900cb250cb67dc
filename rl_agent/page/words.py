"""Folds text to words, so that a search for a part of a text finds words, phrases and beginnings of words.

"The Café has 3.14 apples" ─► " the cafe has 3 14 apples "     the café ─► " the cafe "     appl* ─► " appl"
"""

import re
import unicodedata

MIN_PREFIX = 3
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


def _folded_character(character: str) -> str:
    if _SINGLE.match(character) and character.isalnum():
        return f" {character} "
    parts = unicodedata.normalize("NFKD", character.casefold())
    return "".join(part if part.isalnum() else " " for part in parts if not unicodedata.combining(part))
