"""The words of all episodes, in SQLite's full-text index (FTS5), beside the index of their numbers.

DuckDB would read all texts for each question, 9 GB of a million episodes, and its own full-text index is an
extension that is made as a whole. This one grows row by row, has the place of each word, so that a phrase is
found as one, and has no copy of the texts (`content=''`), from which nothing can be removed either: an
episode that went is in it until it is made anew, and whoever asks takes only those that are there.
"""

import re
import sqlite3
from array import array
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

CACHE_KIB = 64 * 1024
ITERATION_BITS = 40
"""An episode's id: its iteration, and a number of that many bits."""
_SCHEMA = f"""
PRAGMA page_size=8192;
PRAGMA journal_mode=WAL;
PRAGMA synchronous=NORMAL;
PRAGMA journal_size_limit={CACHE_KIB * 1024};
PRAGMA cache_size=-{CACHE_KIB};
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content='', tokenize='unicode61');
"""
_SINGLE = re.compile("([\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff])")
"""Writing that has no spaces between words: each character is one."""
MIN_PREFIX = 3
MAX_ITERATION = 2 ** (63 - ITERATION_BITS) - 2


class Words:
    """One thread adds; any thread asks, over a connection of its own."""

    def __init__(self, file: Path, mark: int, *, is_new: bool) -> None:
        """Raises sqlite3.Error if the file cannot be opened, or does not have the mark of its other half."""
        self._file = file
        self._connection = sqlite3.connect(file, check_same_thread=False)
        try:
            self._connection.executescript(_SCHEMA)
            if is_new:
                self._connection.execute(f"PRAGMA user_version={mark:d}")
            if self._connection.execute("PRAGMA user_version").fetchone() != (mark,):
                raise sqlite3.DatabaseError("these are words of another index")
        except sqlite3.Error:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def next_id(self, iteration: int) -> int:
        """Return an id that none has had, so that what went is never taken for what came."""
        low, high = ids_of(iteration, iteration)
        sql = "SELECT max(id) FROM words_docsize WHERE id BETWEEN ? AND ?"
        (newest,) = self._connection.execute(sql, (low, high)).fetchone()
        return low if newest is None else newest + 1

    def add(self, rows: Iterable[tuple[int, str]]) -> None:
        """Add the texts of episodes by their ids, all or none."""
        with self._connection:
            self._connection.executemany(
                "INSERT INTO words(rowid, text) VALUES (?, ?)", ((one, spaced(text)) for one, text in rows)
            )

    def find(self, expression: str, first: int, last: int) -> "array[int]":
        """Return the ids that fit an expression, of iterations `first` to `last`."""
        sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?"
        found = array("q")
        where = f"file:{quote(str(self._file))}?mode=ro"
        with closing(sqlite3.connect(where, uri=True)) as connection:
            cursor = connection.execute(sql, (expression, *ids_of(first, last)))
            while rows := cursor.fetchmany(10_000):
                found.extend([one for (one,) in rows])
        return found


def ids_of(first: int, last: int) -> tuple[int, int]:
    """Return the lowest and the highest id that episodes of these iterations may have."""
    return first << ITERATION_BITS, (last + 1 << ITERATION_BITS) - 1


def expression_of(words: Iterable[str]) -> str:
    """Return what finds texts with all of these words; each is a phrase where it has several.

    A `*` at the end of a longer word stands for any ending. Empty where nothing has a letter or a digit.
    """
    phrases = []
    for word in words:
        letters = spaced(word)
        if any(map(str.isalnum, letters)):
            star = "*" if word.endswith("*") and word[-MIN_PREFIX - 1 : -1].isalnum() else ""
            phrases.append('"{}"{}'.format(letters.replace('"', " "), star))
    return " AND ".join(phrases)


def spaced(text: str) -> str:
    """Return a text with spaces around each character that is a word; without NUL and half characters."""
    if text.isascii() and "\0" not in text:
        return text
    text = text.encode(errors="replace").decode().replace("\0", "\ufffd")
    return _SINGLE.sub(r" \1 ", text)
