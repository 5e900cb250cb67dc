"""Draws tasks whose test asks nothing that is asked in training: 12 + 30 asks what 30 + 12 does.

`make_tasks.split_of` goes by the text of a question, and the base model that comes with the repository was
taught by it. Here a question is drawn for a split only if it belongs there with its numbers in ascending
order, too: so all orders of the same numbers are in one split, and neither order of two was taught.
"""

import re
from collections.abc import Iterator
from itertools import count, cycle, islice
from typing import Any

from make_tasks import Share, Source, draw_entries, split_of, task_line

_SUM = re.compile(r"-?\d+(?: [+-] \d+)+")
_LIST = re.compile(r"\d+(?:(?:, | \* )\d+)+")


def in_order(question: str, *, is_descending: bool = False) -> str:
    """Return a question with the numbers of its sums and lists in order, and what is added first."""

    def ordered(text: str) -> list[str]:
        return sorted(re.findall(r"\d+", text), key=int, reverse=is_descending)

    def sum_in_order(match: re.Match[str]) -> str:
        signs = sorted(sign or "+" for sign in re.findall(r"([+-]?) ?\d+", match[0]))
        terms = (f"{sign} {number}" for sign, number in zip(signs, ordered(match[0]), strict=True))
        return " ".join(terms).removeprefix("+ ")

    def list_in_order(match: re.Match[str]) -> str:
        numbers = iter(ordered(match[0]))
        return re.sub(r"\d+", lambda _: next(numbers), match[0])

    return _LIST.sub(list_in_order, _SUM.sub(sum_in_order, question))


def is_apart(question: str, split: Share) -> bool:
    """Return whether a question of `split` belongs to no other with its numbers in another order."""
    is_taught = split_of(in_order(question, is_descending=True)) == "teach"
    return split_of(in_order(question)) == split and not is_taught


def draw_apart(source: Source, split: Share, seed: int) -> Iterator[dict[str, Any]]:
    """Yield distinct entries that only this split asks for, until a whole round of draws has no new one."""
    seen: set[str] = set()
    for again in count():
        before = len(seen)
        for entry in draw_entries(source, split, seed + again * 2**40):
            question = entry["question"]
            if question not in seen and is_apart(question, split):
                seen.add(question)
                yield entry
        if len(seen) == before:
            return


def draw_tasks(sources: tuple[Source, ...], split: Share, size: int, seed: int) -> list[dict[str, Any]]:
    """Draw `size` tasks, the sources taking turns. Raises SystemExit if a source has too few questions."""
    draws = [(source, draw_apart(source, split, seed)) for source in sources]
    tasks: list[dict[str, Any]] = []
    for source, entries in islice(cycle(draws), size):
        entry = next(entries, None)
        if entry is None:
            name = f"{source.dataset} ({source.difficulty})"
            raise SystemExit(f"{name} has no more {split} questions after {len(tasks)} tasks; ask for fewer")
        tasks.append(task_line(source, entry))
    return tasks
