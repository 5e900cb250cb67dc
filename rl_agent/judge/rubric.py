"""The criteria of a task: `rubrics` or WebGym's `evaluator_reference`, a text or a list of them. Pure.

    "the order is placed"                                            one criterion
    ["…", {"description": "…", "weight": 2}]                         several; a weight is 1 unless it is given
    [{"description": "…", "facts": ["…", "…"]}]                      a group: each of its facts is a criterion

A task's reference `answer` is one more criterion; a task with nothing of all this is judged as a whole.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rl_agent.errors import TaskError
from rl_agent.types import Task

FIELDS = ("rubrics", "evaluator_reference")
_TEXTS = ("criterion", "description", "rubric", "fact", "text")
_GROUPS = ("facts", "rubrics", "criteria")
MAX_CRITERIA = 50
MAX_WEIGHT = 1e9
"""Larger ones say no more, and their sum may be no number."""

OF_THE_ANSWER = "The agent's final answer agrees with the reference answer."
OF_THE_WHOLE = "The agent accomplished the whole task."

Purpose = Literal["pick", "criterion", "evaluation"]


@dataclass(frozen=True, slots=True)
class Criterion:
    """One question about an episode."""

    text: str
    weight: float = 1.0
    purpose: Purpose = "criterion"
    """The purpose whose settings of the judge answer this."""


def criteria_of(task: Task) -> tuple[Criterion, ...]:
    """Return the criteria of a task, at least one. Raises ValueError that names the field."""
    rubrics = [(name, task.extra[name]) for name in FIELDS if task.extra.get(name)]
    if len(rubrics) > 1:
        raise ValueError(f"{' and '.join(FIELDS)} are both given; give one")
    criteria = [criterion for name, written in rubrics for criterion in _flat(written, name)]
    if len(criteria) > MAX_CRITERIA:
        raise ValueError(f"{rubrics[0][0]} has {len(criteria)} criteria; {MAX_CRITERIA} at most")
    if task.answer is not None:
        criteria.append(Criterion(OF_THE_ANSWER, purpose="evaluation"))
    return tuple(criteria) or (Criterion(OF_THE_WHOLE, purpose="evaluation"),)


def check_criteria(tasks: Iterable[Task]) -> None:
    """Raises TaskError for the first task whose criteria cannot be judged."""
    for task in tasks:
        try:
            criteria_of(task)
        except ValueError as error:
            raise TaskError(f"task {task.task_id}: {error}", task.task_id) from None


def _flat(written: Any, place: str, weight: float = 1.0) -> Iterator[Criterion]:
    if isinstance(written, str) and written.strip():
        yield Criterion(written.strip(), weight)
    elif isinstance(written, list):
        for number, entry in enumerate(written):
            if isinstance(entry, list):
                raise ValueError(f"{place}[{number}] is a list in a list; use texts and objects")
            yield from _flat(entry, f"{place}[{number}]", weight)
    elif isinstance(written, dict):
        weight = _weight(written.get("weight", weight), place)
        group = next((written[name] for name in _GROUPS if written.get(name)), None)
        text = next((written[name] for name in _TEXTS if isinstance(written.get(name), str)), "")
        if isinstance(group, list):
            for number, entry in enumerate(group):
                is_group = isinstance(entry, dict) and any(name in entry for name in _GROUPS)
                if is_group or not isinstance(entry, str | dict):
                    raise ValueError(f"{place}: fact {number} is neither a text nor an object with one")
                yield from _flat(entry, f"{place}: fact {number}", weight)
        elif text.strip():
            yield Criterion(text.strip(), weight)
        else:
            raise ValueError(f"{place} has none of {', '.join(_TEXTS)} with a text")
    else:
        raise ValueError(f"{place} is {type(written).__name__}; use a text, a list or an object")


def _weight(weight: object, place: str) -> float:
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 < weight <= MAX_WEIGHT:  # type: ignore[operator]
        raise ValueError(f"{place}: weight is {weight!r:.40}; use a number above 0, at most {MAX_WEIGHT:g}")
    return float(weight)  # type: ignore[arg-type]
