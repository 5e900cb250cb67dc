"""Chosen steps as the very tokens that the engine saw and sampled, for LLaMA-Factory to train on.

A step becomes one example: its whole context and its response, by the recorded token ids. The loss falls on
the response's tokens (without `mask_history` also on the responses before it) and on nothing else, whatever
template LLaMA-Factory has: it is given tokens that are ready (`tokenized_path`), and renders no conversation.

    context of step k = prompt + response + prompt + response + … + prompt_k      since the last context reset
                          -         x          -        (x)            -      response_k: x

What cannot be trained on as it was seen is left out, with the reason. `Reason` names them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.files import remove, sync_tree
from rl_agent.rollout.trajectories.images import recorded_image
from rl_agent.types import EpisodeKey, Observation

DATASET = "rl_agent_train"
VALIDATION = "rl_agent_validation"
"""Names that LLaMA-Factory asks for; the files are those of `DATASET_FOLDER`."""
DATASET_FOLDER = "dataset"

IGNORED = -100
"""The label of a token that has no loss."""
_BROKEN = "\ufffd"
_SMALLEST_PIXELS, _SMALLEST_SIDE, _STEEPEST = 32 * 32, 28, 200
"""LLaMA-Factory resizes an image with fewer pixels, a shorter side or a larger ratio of its sides."""


class Reason(StrEnum):
    """Why a step is left out."""

    TOO_LONG = "longer than trainer.cutoff_len"
    OTHER_TOKENS = "sampled with another tokenizer than the model's"
    MEDIA = "with a token for images where there is no image"
    LOST_IMAGE = "with an image that is gone, or is not the one that was seen"
    IMAGE = "with an image that cannot be read, or that LLaMA-Factory resizes (trainer.image_max_pixels)"


@dataclass(frozen=True, slots=True)
class Spoken:
    """The part of a `Generation` that is exported."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """The part of a `Step` that is exported."""

    observation: Observation
    prompt_token_ids: tuple[int, ...]
    generation: Spoken
    context_reset: bool = False


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The part of a `Trajectory` that is exported."""

    key: EpisodeKey
    steps: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One sample of LLaMA-Factory's."""

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    images: tuple[str, ...]
    """Paths, in the order of their placeholders among the tokens."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What an example is made by."""

    chat: ChatTokenizer
    """Of the model that is trained."""
    media: frozenset[int]
    """Tokens that stand for a piece of an image or a video, or for its bounds."""
    image_start: int | None
    """The one of them that comes once an image; None where the model has none."""
    mask_history: bool
    image_max_pixels: int
    images: Path
    """The folder of the run's images; the log path may have been moved since they were recorded."""


def examples(
    dialogues: Iterable[Dialogue], steps: Mapping[EpisodeKey, Collection[int]], terms: Terms
) -> Iterator[tuple[EpisodeKey, int, Example | Reason]]:
    """An example for each of `steps`, or why there is none, in the order of the file."""
    for dialogue in dialogues:
        for step in sorted(steps.get(dialogue.key, ())):
            yield dialogue.key, step, example(dialogue, step, terms)


def example(dialogue: Dialogue, step: int, terms: Terms) -> Example | Reason:
    """The tokens up to and including the response of `step`."""
    turns = dialogue.steps[: step + 1]
    begin = max((index for index, turn in enumerate(turns) if turn.context_reset), default=0)
    token_ids: list[int] = []
    labels: list[int] = []
    for index, turn in enumerate(turns[begin:], begin):
        said, has_loss = turn.generation.token_ids, index == step or not terms.mask_history
        token_ids += turn.prompt_token_ids
        if not _is_of(terms.chat, token_ids, turn.generation):
            return Reason.OTHER_TOKENS
        token_ids += said
        labels += [IGNORED] * len(turn.prompt_token_ids)
        labels += said if has_loss else [IGNORED] * len(said)
    recorded = [path for turn in turns for path in turn.observation.images]
    if not _is_shown(turns, token_ids, len(recorded), terms):
        return Reason.MEDIA
    images = [found for path in recorded if (found := recorded_image(path, terms.images)) is not None]
    if len(images) < len(recorded):
        return Reason.LOST_IMAGE
    if not all(_is_taken_as_it_is(path, terms.image_max_pixels) for path in images):
        return Reason.IMAGE
    return Example(np.array(token_ids, np.int32), np.array(labels, np.int32), tuple(map(str, images)))


def _is_of(chat: ChatTokenizer, context: Sequence[int], said: Spoken) -> bool:
    """Whether the model's tokenizer reads the response's tokens as the text that was recorded of them.

    That lacks the token which ended the response, and a character whose end was not sampled.
    """
    tokens = said.token_ids
    return any(
        read.rstrip(_BROKEN) == said.text.rstrip(_BROKEN)
        for shown in (tokens, tokens[:-1])
        for read in (chat.decode_after(context, shown), chat.decode(shown))
    )


def _is_shown(turns: Sequence[Turn], token_ids: Sequence[int], images: int, terms: Terms) -> bool:
    """Whether the tokens for media are those of the images: a model or a task may write some itself."""
    written = [turn.generation.token_ids for turn in turns] if images else [token_ids]
    if any(not terms.media.isdisjoint(tokens) for tokens in written):
        return False
    return not images or terms.image_start is None or token_ids.count(terms.image_start) == images


def _is_taken_as_it_is(path: Path, max_pixels: int) -> bool:
    """Whether LLaMA-Factory gives an image to the model's own processor as the engine did."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            width, height = image.size
    except (OSError, Image.DecompressionBombError):
        return False
    short, long = sorted((width, height))
    return (
        _SMALLEST_PIXELS <= width * height <= max_pixels
        and short >= _SMALLEST_SIDE
        and long <= _STEEPEST * short
    )


def write_datasets(folder: Path, training: Iterable[Example], validation: Iterable[Example]) -> Path:
    """Write what LLaMA-Factory loads as `tokenized_path`, whole; equal examples give equal files."""
    from datasets import DatasetDict, disable_progress_bars

    disable_progress_bars()
    parts = {"train": list(training), "validation": list(validation)}
    target = folder / DATASET_FOLDER
    growing = target.with_name(target.name + ".tmp")
    remove(growing)
    DatasetDict({name: _table(part) for name, part in parts.items() if part}).save_to_disk(growing)
    sync_tree(growing)
    remove(target)
    growing.rename(target)
    return target


def _table(part: Sequence[Example]) -> Any:
    from datasets import Dataset, Features, Value
    from datasets import Sequence as Column

    columns = {
        "input_ids": (Column(Value("int32")), [one.input_ids for one in part]),
        "attention_mask": (Column(Value("int8")), [np.ones(len(one.input_ids), np.int8) for one in part]),
        "labels": (Column(Value("int32")), [one.labels for one in part]),
    }
    if any(one.images for one in part):
        columns["images"] = (Column(Value("string")), [list(one.images) or None for one in part])
    features = Features({name: kind for name, (kind, _) in columns.items()})
    return Dataset.from_dict({name: values for name, (_, values) in columns.items()}, features=features)
