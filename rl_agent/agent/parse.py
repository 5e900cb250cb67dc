"""Turns what a model wrote into what an environment is given, in time linear in its length."""

from collections.abc import Iterator

_THOUGHT = ("<think>", "</think>")


def parse_action(response: str) -> str:
    """The response without its thoughts and surrounding blanks.

    Thoughts whose `<think>` stood in the prompt end at a lone `</think>`; thoughts that were cut off by
    the token limit hide everything after them: a half-finished thought is not an action.

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
    """The parts of a response that are between its closed thoughts."""
    spoken_from = 0
    for begin, end in enclosed(response, *_THOUGHT):
        yield response[spoken_from : begin - len(_THOUGHT[0])]
        spoken_from = end + len(_THOUGHT[1])
    yield response[spoken_from:]


def enclosed(text: str, start: str, end: str) -> Iterator[tuple[int, int]]:
    """Where what stands between `start` and the next `end` begins and ends, from left to right.

    Finds what the regular expression `start(.*?)end` does, which looks for an end that is missing behind
    every start anew, and takes minutes for a model that repeats one.
    """
    searched_from = 0
    while (begin := text.find(start, searched_from)) >= 0:
        begin += len(start)
        found = text.find(end, begin)
        if found < 0:
            return
        yield begin, found
        searched_from = found + len(end)
