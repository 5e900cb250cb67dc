"""Chosen steps as a ShareGPT dataset that LLaMA-Factory reads.

A step becomes one example: the conversation up to and including its response, of which (with
`mask_history`) only the last response is trained on. Texts are what was shown and what was sampled, with
three exceptions, each forced by LLaMA-Factory's template:
- the end-of-turn text is cut off a response: the template adds it;
- a thought whose `<think>` stood in the prompt gets it back, because LLaMA-Factory's prompt has none;
- `<image>`, `<video>`, `<audio>` and the model's own tokens for media, written by somebody, are defused,
  because the trainer would look for a file. The placeholders of real images stand before their
  observation's text, as the engine was asked.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent.files import write_whole
from rl_agent.types import EpisodeKey, Observation

DATASET = "rl_agent_train"
VALIDATION = "rl_agent_validation"

_MEDIA_TAG = re.compile(r"<(image|video|audio)>")
_START_OF_THOUGHT, _END_OF_THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """Texts of a model's special tokens that need care."""

    stop: tuple[str, ...]
    """End a turn."""
    media: tuple[str, ...] = ()
    """Stand for a piece of an image or a video, or for its bounds."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """The part of a `Generation` that is exported."""

    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """The part of a `Step` that is exported."""

    observation: Observation
    generation: Spoken


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The part of a `Trajectory` that is exported; read without its tokens."""

    key: EpisodeKey
    steps: tuple[Turn, ...]
    system_prompt: str


def examples(
    dialogues: Iterable[Dialogue], steps: Mapping[EpisodeKey, Collection[int]], tokens: TokenTexts
) -> Iterator[tuple[EpisodeKey, int, dict[str, Any]]]:
    """An example for each of `steps`, in the order of the file."""
    for dialogue in dialogues:
        for step in sorted(steps.get(dialogue.key, ())):
            yield dialogue.key, step, example(dialogue, step, tokens)


def example(dialogue: Dialogue, step: int, tokens: TokenTexts) -> dict[str, Any]:
    """The conversation up to and including the response of `step`."""
    turns = dialogue.steps[: step + 1]
    conversations = []
    for turn in turns:
        conversations.append({"from": "human", "value": _shown(turn.observation, tokens)})
        conversations.append({"from": "gpt", "value": _said(turn.generation.text, tokens)})
    row: dict[str, Any] = {"conversations": conversations, "system": dialogue.system_prompt}
    images = [path for turn in turns for path in turn.observation.images]
    return row | {"images": images} if images else row


def _shown(observation: Observation, tokens: TokenTexts) -> str:
    return "<image>" * len(observation.images) + _defuse(observation.text, tokens)


def _said(response: str, tokens: TokenTexts) -> str:
    for stop in tokens.stop:
        response = response.removesuffix(stop)
    if _END_OF_THOUGHT in response and _START_OF_THOUGHT not in response:
        response = f"{_START_OF_THOUGHT}\n{response}"
    return _defuse(response, tokens)


def _defuse(text: str, tokens: TokenTexts) -> str:
    for token in tokens.media:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return _MEDIA_TAG.sub(r"< \1>", text)


def write_dataset(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write one dataset file, whole; one example a line."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(folder / f"{name}.jsonl", "".join(lines))


def write_dataset_info(folder: Path, names: Sequence[str], *, with_images: bool) -> None:
    """Tell LLaMA-Factory how to read the datasets of this folder."""
    columns = {"messages": "conversations", "system": "system"}
    if with_images:
        columns["images"] = "images"
    info = {
        name: {
            "file_name": f"{name}.jsonl",
            "formatting": "sharegpt",
            "columns": columns,
            "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"},
        }
        for name in names
    }
    write_whole(folder / "dataset_info.json", json.dumps(info, indent=2) + "\n")
