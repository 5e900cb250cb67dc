"""Builds the prompts of a judge and reads its answers. Pure.

    system   configs/judge/verdict.md or pick.md, with the fence
    user     BEGIN EVIDENCE <fence> · one JSON document · END EVIDENCE <fence> · images · the question

An episode is shown as one JSON document, whose strings cannot end or imitate it, between lines with a fence
that is random for every request: what an agent writes can neither leave the evidence nor pass for the
question. An answer must be one JSON object of the wanted form and nothing else; anything else is unreadable,
never a success.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_agent.judge.rubric import Criterion
from rl_agent.types import Trajectory, writable

FENCE = "{fence}"
"""Stands for the fence until a request is sent, so that equal questions are equal."""

ImagePlace = tuple[int, int]
"""Index of a step, and of an image in its observation."""

VERDICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": ["PASS", "FAIL"]}},
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
PICK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"images": {"type": "array", "items": {"type": "integer"}}},
    "required": ["images"],
    "additionalProperties": False,
}

TRIAL: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer with one JSON object and nothing else."},
    {"role": "user", "content": 'Answer {"reason": "ready", "verdict": "PASS"}'},
]
"""Messages of the question that shows whether an API takes a run's settings."""


class UnreadableAnswer(ValueError):
    """A judge's answer is not what it was asked for; the message says what it is, in one line."""


@dataclass(frozen=True, slots=True)
class CriterionResult:
    """The verdict that was read from a judge's answer."""

    passes: bool
    reason: str


def images_of(trajectory: Trajectory) -> dict[ImagePlace, str]:
    """Return the paths of all images of an episode, in order."""
    return {
        (number, index): path
        for number, step in enumerate(trajectory.steps)
        for index, path in enumerate(step.observation.images)
    }


def names_of(places: Iterable[ImagePlace]) -> dict[ImagePlace, str]:
    """Name all images of an episode: image 1, image 2, …."""
    return {place: f"image {number}" for number, place in enumerate(places, start=1)}


def verdict_messages(
    instructions: str, trajectory: Trajectory, criterion: Criterion, urls: Mapping[ImagePlace, str]
) -> list[dict[str, Any]]:
    """Build the messages that ask whether an episode meets a criterion."""
    question = {"criterion": criterion.text}
    return _messages(instructions, trajectory, urls, question, answer=trajectory.task.answer)


def pick_messages(
    instructions: str,
    trajectory: Trajectory,
    criteria: Sequence[Criterion],
    urls: Mapping[ImagePlace, str],
) -> list[dict[str, Any]]:
    """Build the messages that ask which of these images matter."""
    question = {"criteria": [criterion.text for criterion in criteria]}
    return _messages(instructions, trajectory, urls, question, answer=None)


def _messages(
    instructions: str,
    trajectory: Trajectory,
    urls: Mapping[ImagePlace, str],
    question: Mapping[str, Any],
    *,
    answer: str | None,
) -> list[dict[str, Any]]:
    names = names_of(images_of(trajectory))
    document = {
        "task": trajectory.task.prompt,
        "reference_answer": answer,
        "transcript": [
            {
                "observation": step.observation.text,
                "images": [
                    names[number, index] + ("" if (number, index) in urls else " (not shown)")
                    for index in range(len(step.observation.images))
                ],
                "response": step.action,
            }
            for number, step in enumerate(trajectory.steps)
        ],
    }
    if answer is None:
        del document["reference_answer"]
    text = json.dumps(document, ensure_ascii=False, indent=1).replace(FENCE, "{ fence }")
    evidence = f"BEGIN EVIDENCE {FENCE}\n{text}\nEND EVIDENCE {FENCE}"
    question_text = json.dumps(question, ensure_ascii=False).replace(FENCE, "{ fence }")
    content: str | list[dict[str, Any]] = f"{evidence}\n\n{question_text}"
    if urls:
        parts = [_text(evidence)]
        for place, url in urls.items():
            parts += [_text(names[place]), {"type": "image_url", "image_url": {"url": url}}]
        content = [*parts, _text(question_text)]
    return [{"role": "system", "content": instructions}, {"role": "user", "content": content}]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def fenced(messages: Sequence[dict[str, Any]], fence: str) -> list[dict[str, Any]]:
    """Return the messages of a request with its fence."""

    def put(content: Any) -> Any:
        if isinstance(content, str):
            return content.replace(FENCE, fence)
        return [part | {"text": put(part["text"])} if part["type"] == "text" else part for part in content]

    return [message | {"content": put(message["content"])} for message in messages]


def read_verdict(text: str, finish_reason: str | None) -> CriterionResult:
    """Read a verdict. Raises UnreadableAnswer for anything else than one."""
    answer = _object(text, finish_reason)
    if answer.keys() != {"reason", "verdict"} or answer["verdict"] not in ("PASS", "FAIL"):
        raise UnreadableAnswer(f"no verdict: {_excerpt(text)}")
    if not isinstance(answer["reason"], str):
        raise UnreadableAnswer(f"its reason is not a text: {_excerpt(text)}")
    return CriterionResult(answer["verdict"] == "PASS", writable(" ".join(answer["reason"].split())))


def read_picks(text: str, finish_reason: str | None, allowed: frozenset[int]) -> tuple[int, ...]:
    """Read the numbers of the images that matter. Raises UnreadableAnswer."""
    answer = _object(text, finish_reason)
    numbers = answer.get("images") if answer.keys() == {"images"} else None
    if not isinstance(numbers, list) or not all(type(place) is int and place in allowed for place in numbers):
        raise UnreadableAnswer(f"no list of images that were shown: {_excerpt(text)}")
    return tuple(dict.fromkeys(numbers))


def _object(text: str, finish_reason: str | None) -> dict[str, Any]:
    """Return the JSON object that is the whole answer, after thoughts and in a code fence or not."""
    if finish_reason == "length":
        raise UnreadableAnswer("it was cut off; raise openai_config.max_tokens")
    if finish_reason != "stop":
        raise UnreadableAnswer(f"it ended with {finish_reason!r}")
    spoken = text.rpartition("</think>")[2].strip()
    if spoken.startswith("```") and spoken.endswith("```"):
        spoken = spoken.removeprefix("```json").strip("`").strip()
    try:
        answer = json.loads(spoken, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise UnreadableAnswer(f"not one JSON object: {_excerpt(text)}") from None
    if not isinstance(answer, dict):
        raise UnreadableAnswer(f"not one JSON object: {_excerpt(text)}")
    return answer


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key is given twice")
    return values


def _excerpt(text: str) -> str:
    return writable(repr(text[-200:]))
