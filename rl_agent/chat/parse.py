"""Extracts the action from a model's response, in time linear in its length."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thought:
    """The marks between which a family of models thinks."""

    begin: str
    end: str
    parsers: tuple[str, ...] = ()
    """Reasoning parsers of vLLM that do not start where one of the marks is not a token of the model."""


THOUGHTS = (
    Thought("<think>", "</think>", ("deepseek_r1", "ernie45", "step3p5")),
    Thought("<mm:think>", "</mm:think>", ("minimax_m3",)),
    Thought("<seed:think>", "</seed:think>"),
    Thought("[THINK]", "[/THINK]"),
    Thought("◁think▷", "◁/think▷"),
    Thought("<|START_THINKING|>", "<|END_THINKING|>"),
    Thought("<|channel>thought", "<channel|>"),
    Thought("<|inner_prefix|>", "<|inner_suffix|>"),
    Thought("<|channel|>", "<|channel|>final<|message|>"),  # whatever its other channels say
)
"""The marks of Qwen, DeepSeek, GLM, MiniMax, Nemotron and others; MiniMax M3; Seed-OSS; Mistral; Kimi-VL;
Command A; Gemma 4; Apertus; gpt-oss."""


def parse_action(response: str, opened: Thought | None = None) -> str:
    """Return the response without its thoughts and surrounding blanks.

    `opened` is the thought that the end of the prompt began. A thought that does not end, as where the token
    limit cut it, hides all text after it: an unfinished thought is not an action.

    >>> parse_action("<think>2+2 is 4</think> 4 ")
    '4'
    >>> parse_action("2+2 is 4</think>4")
    '4'
    >>> parse_action("<think>2+2 is")
    ''
    >>> parse_action("2+2 is", THOUGHTS[0])
    ''
    """
    spoken = response if opened is None else opened.begin + response
    for thought in THOUGHTS:
        if thought.begin in spoken or thought.end in spoken:
            spoken = "".join(_outside(spoken, thought)).rpartition(thought.end)[2]
            spoken = spoken.partition(thought.begin)[0]
    return spoken.strip()


def parse_thought(response: str, opened: Thought | None = None) -> str:
    """Return the first thought of a response, without its marks and surrounding blanks; empty without one.

    >>> parse_thought("2+2 is 4</think>4", THOUGHTS[0])
    '2+2 is 4'
    """
    spoken = response if opened is None else opened.begin + response
    for thought in THOUGHTS:
        if thought.begin in spoken or thought.end in spoken:
            return spoken.partition(thought.end)[0].rpartition(thought.begin)[2].strip()
    return ""


def opened_thought(prompt: str) -> Thought | None:
    """Return the thought that the end of a prompt begins; None if it begins none."""
    spoken = prompt.rstrip()
    return next((thought for thought in THOUGHTS if spoken.endswith(thought.begin)), None)


def _outside(response: str, thought: Thought) -> Iterator[str]:
    """Iterate over the parts of a response outside its closed thoughts."""
    spoken_from = 0
    for begin, end in enclosed(response, thought.begin, thought.end):
        yield response[spoken_from : begin - len(thought.begin)]
        spoken_from = end + len(thought.end)
    yield response[spoken_from:]


def enclosed(text: str, start: str, end: str) -> Iterator[tuple[int, int]]:
    """Iterate over the ranges of text between `start` and the next `end`, from left to right.

    The regular expression `start(.*?)end` finds the same, but searches for a missing end again after every
    start, which takes minutes if a model repeats the start.
    """
    searched_from = 0
    while (begin := text.find(start, searched_from)) >= 0:
        begin += len(start)
        place = text.find(end, begin)
        if place < 0:
            return
        yield begin, place
        searched_from = place + len(end)
