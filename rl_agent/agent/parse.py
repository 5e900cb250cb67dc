"""Extracts the action from a model's response, in time linear in its length."""

from collections.abc import Iterator

_THOUGHT = ("<think>", "</think>")


def parse_action(response: str) -> str:
    """Return the response without its thoughts and surrounding blanks.

    Thoughts whose `<think>` was in the prompt end at a single `</think>`. Thoughts that were cut off by the
    token limit hide all text after them: an unfinished thought is not an action.

    >>> parse_action("<think>2+2 is 4</think> 4 ")
    '4'
    >>> parse_action("2+2 is 4</think>4")
    '4'
    >>> parse_action("<think>2+2 is")
    ''
    """
    start, end = _THOUGHT
    spoken = "".join(_outside(response)).rpartition(end)[2]
    return spoken.partition(start)[0].strip()


def _outside(response: str) -> Iterator[str]:
    """Iterate over the parts of a response outside its closed thoughts."""
    spoken_from = 0
    for begin, end in enclosed(response, *_THOUGHT):
        yield response[spoken_from : begin - len(_THOUGHT[0])]
        spoken_from = end + len(_THOUGHT[1])
    yield response[spoken_from:]


def enclosed(text: str, start: str, end: str) -> Iterator[tuple[int, int]]:
    """Iterate over the ranges of text between `start` and the next `end`, from left to right.

    The regular expression `start(.*?)end` finds the same, but searches for a missing end again after every
    start, which takes minutes if a model repeats the start.
    """
    searched_from = 0
    while (begin := text.find(start, searched_from)) >= 0:
        begin += len(start)
        found = text.find(end, begin)
        if found < 0:
            return
        yield begin, found
        searched_from = found + len(end)
