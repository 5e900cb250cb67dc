"""Turns what a model wrote into what an environment is given."""

import re

_CLOSED_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_END_OF_THOUGHT = "</think>"
_START_OF_THOUGHT = "<think>"


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
    spoken = _CLOSED_THOUGHT.sub("", response)
    spoken = spoken.rpartition(_END_OF_THOUGHT)[2]
    return spoken.partition(_START_OF_THOUGHT)[0].strip()
