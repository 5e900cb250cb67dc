"""Decides which earlier rounds of an episode the model is shown. Pure.

A round is an observation and the response to it. The newest rounds are shown whole, the ones before as one
line each, the oldest perhaps not at all:

    system prompt
    first observation's text (the task), a summary if there is one, a line for each older round
    observation k, response k, … observation n-1, response n-1                    whole
    observation n                                                                 what is answered now

`views` lists what may be shown, the most first; the caller takes the first that fits. What was left out once
stays left out, so a context grows at its end as long as it can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rl_agent.types import Observation

ContextKind = Literal["everything", "window", "summary"]

_PAGE, _ACTION = 100, 200
"""Characters of an observation and of an action in the line of their round."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """The settings of the group `context`, with what they mean for the served model."""

    kind: ContextKind = "everything"
    max_images: int | None = None
    """Most images in a prompt; those of the newest observation are always shown. None: any number."""
    max_rounds: int | None = None
    """Most earlier rounds that are shown whole. None: any number."""
    max_lines: int | None = None
    """Most rounds that are shown as a line. None: any number."""
    max_model_len: int | None = None
    """Tokens that prompt and response may have together. None: not known."""
    response_tokens: int = 1
    """Tokens that a prompt leaves for its response."""
    keep_rounds: int = 0
    """Rounds that are shown whole beside a new summary."""
    summary_tokens: int = 0
    """Most tokens of a summary."""
    summary_prompt: str = ""

    @property
    def max_prompt_tokens(self) -> int | None:
        """Return how long a prompt may be; None where that is not known."""
        return None if self.max_model_len is None else self.max_model_len - self.response_tokens


@dataclass(frozen=True, slots=True)
class Round:
    """An earlier step, as far as it may be shown again."""

    observation: Observation
    response: str
    action: str
    changed: bool = True
    invalid: bool = False
    is_call: bool = False
    """The response called a tool: the observation after it has the role of a tool."""


@dataclass(frozen=True, slots=True)
class ContextView:
    """The part of the rounds so far that is shown."""

    whole_from: int = 0
    """Index of the first round that is shown whole."""
    as_lines: int = 0
    """Number of rounds right before it that are shown as a line each."""
    summary: str = ""
    """Stands for the rounds that are shown neither whole nor as a line."""


def views(
    limits: ContextLimits, rounds: Sequence[Round], observation: Observation, last: ContextView
) -> list[ContextView]:
    """List what may be shown before the response to `observation`, the most first; `last` was before."""
    if limits.kind == "everything" or not rounds:
        return [last]
    begin = first_whole(limits, rounds, observation, last)
    gone = last.whole_from - last.as_lines  # in a summary, or not shown any more
    most = len(rounds) if limits.max_lines is None else limits.max_lines
    candidates = [
        replace(last, whole_from=start, as_lines=min(start - gone, most))
        for start in range(begin, len(rounds) + 1)
    ]
    lines = candidates[-1].as_lines
    while lines:
        lines //= 2
        candidates.append(replace(candidates[-1], as_lines=lines))
    return candidates


def first_whole(
    limits: ContextLimits, rounds: Sequence[Round], observation: Observation, last: ContextView
) -> int:
    """Return the first round that the numbers of images and rounds allow to show whole."""
    begin = last.whole_from
    if limits.max_rounds is not None:
        begin = max(begin, len(rounds) - limits.max_rounds)
    if limits.max_images is not None:
        left = limits.max_images - len(observation.images)
        for index in range(len(rounds) - 1, begin - 1, -1):
            left -= len(rounds[index].observation.images)
            if left < 0 and rounds[index].observation.images:
                return index + 1
    return begin


def images_of(view: ContextView, rounds: Sequence[Round], observation: Observation) -> list[str]:
    """List the paths of the images that are shown, in order."""
    seen = [*(entry.observation for entry in rounds[view.whole_from :]), observation]
    return [path for entry in seen for path in entry.images]


def opening(view: ContextView, rounds: Sequence[Round], observation: Observation) -> str:
    """Return the text that stands for what is not shown whole; empty where all is.

    It begins with the first observation's text, for that states the task, unless what follows begins so too.
    """
    if view.whole_from == 0:
        return ""
    task = rounds[0].observation.text.strip()
    following = [*(turn.observation for turn in rounds[view.whole_from :]), observation][0]
    parts = [] if not task or following.text.lstrip().startswith(task) else [task]
    if view.summary:
        parts.append(f"Summary of the earlier steps:\n{view.summary}")
    first = view.whole_from - view.as_lines
    lines = [line_of(number, rounds[number]) for number in range(first, view.whole_from)]
    if first and not view.summary:
        lines.insert(0, f"({first} earlier step{'s are' if first > 1 else ' is'} not shown)")
    if lines:
        parts.append("\n".join(["Earlier steps:", *lines]))
    return "\n\n".join(parts)


def line_of(number: int, step: Round) -> str:
    """Return a round as one line: where it was, what was done, and what came of it."""
    page = next((line for line in step.observation.text.splitlines() if line.strip()), "")
    outcome = " (not understood)" if step.invalid else "" if step.changed else " (nothing changed)"
    seen = f"{_cut(page, _PAGE)} -> " if page else ""
    return f"{number + 1}. {seen}{_cut(step.action, _ACTION) or '(no action)'}{outcome}"


def _cut(text: str, length: int) -> str:
    """Return a text on one line, without what is longer."""
    flat = " ".join(text[: 4 * length].split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
