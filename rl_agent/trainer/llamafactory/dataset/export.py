"""Exports chosen steps to LLaMA-Factory as the tokens that the engine saw and sampled.

A step becomes one example: its whole context and its response, by the recorded token ids. The loss falls on
the response's tokens (without `mask_history` also on the responses before it) and on nothing else. The
template does not matter: LLaMA-Factory is given finished tokens (`tokenized_path`) and renders no text.

    context of step k = prompt + response + prompt + response + … + prompt_k      since the last context reset
                          -         x          -        (x)            -      response_k: x

The images of an example are those that the record names by their digests, in the order of their placeholders:
a context need not show all that the episode did. A record of before there were digests shows everything.

A step that cannot be trained on as it was seen is left out, for one of the reasons in `Reason`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.config.plan import Config
from rl_agent.rollout.trajectories.images import digest_of, image_size, recorded_image
from rl_agent.system.files import remove, sync_tree
from rl_agent.trainer.llamafactory.inputs import DATASET_FOLDER
from rl_agent.trainer.llamafactory.model import ServedVersion
from rl_agent.types import EpisodeKey, Observation

IGNORED = -100
"""The label of a token that has no loss."""
_BROKEN = "\ufffd"
_IMAGE_START = "vision_start_token_id"
_MEDIA_TOKENS = ("image_token_id", "image_token_index", "video_token_id", _IMAGE_START, "vision_end_token_id")
"""Keys of a vision model's config.json."""
_SMALLEST_PIXELS, _SMALLEST_SIDE, _STEEPEST = 32 * 32, 28, 200
"""LLaMA-Factory resizes an image with fewer pixels, a shorter side or a larger ratio of its sides."""


class Reason(StrEnum):
    """The reasons why a step is left out."""

    TOO_LONG = "longer than trainer.cutoff_len"
    NO_TOKENS = "recorded without tokens, from a server that tells none"
    OTHER_TOKENS = "sampled with another tokenizer than the model's"
    MEDIA = "with a token for images where there is no image"
    LOST_IMAGE = "with an image that is gone, or is not the one that was seen"
    IMAGE = "with an image that cannot be read, or that LLaMA-Factory resizes (trainer.image_max_pixels)"


@dataclass(frozen=True, slots=True)
class ExportedResponse:
    """The exported part of a `Generation`."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExportedCompaction:
    """The exported part of a `Compaction`."""

    prompt_token_ids: tuple[int, ...]
    images: tuple[str, ...]
    generation: ExportedResponse


@dataclass(frozen=True, slots=True)
class ExportedContext:
    """The exported part of a `SeenContext`."""

    images: tuple[str, ...] = ()
    whole_from: int = 0
    compactions: tuple[ExportedCompaction, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """The exported part of a `Step`."""

    observation: Observation
    prompt_token_ids: tuple[int, ...]
    generation: ExportedResponse
    context_reset: bool = False
    seen: ExportedContext = ExportedContext()


@dataclass(frozen=True, slots=True)
class ExportedEpisode:
    """The exported part of a `Trajectory`."""

    key: EpisodeKey
    steps: tuple[ExportedStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One training sample as LLaMA-Factory reads it."""

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    images: tuple[str, ...]
    """Paths, in the order of their placeholders among the tokens."""


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The settings by which an example is made."""

    chat: ChatTokenizer
    """Tokenizer of the model that is trained."""
    media: frozenset[int]
    """Tokens that stand for a piece of an image or a video, or for its bounds."""
    image_start: int | None
    """The token that begins every image; None if the model has none."""
    mask_history: bool
    image_max_pixels: int
    images: Path
    """The folder of the run's images; the log path may have been moved since they were recorded."""

    @classmethod
    def of(cls, config: Config, model: ServedVersion) -> "ExportSettings":
        """Load what the examples of `model` depend on. Raises ConfigError for a damaged file of it."""
        settings = model.config
        return cls(
            chat=ChatTokenizer.load(str(model.files), config.model.chat_template_kwargs),
            media=frozenset(settings[key] for key in _MEDIA_TOKENS if settings.get(key) is not None),
            image_start=settings.get(_IMAGE_START),
            mask_history=config.llamafactory.mask_history,
            image_max_pixels=config.llamafactory.image_max_pixels,
            images=config.paths.images,
        )


def examples(
    dialogues: Iterable[ExportedEpisode],
    steps: Mapping[EpisodeKey, Collection[int]],
    settings: ExportSettings,
) -> Iterator[tuple[EpisodeKey, int, Example | Reason]]:
    """Make an example of each of `steps`, or give the reason why not, in the order of the file."""
    for dialogue in dialogues:
        for step in sorted(steps.get(dialogue.key, ())):
            yield dialogue.key, step, example(dialogue, step, settings)


def example(dialogue: ExportedEpisode, step: int, settings: ExportSettings) -> Example | Reason:
    """Make an example of the tokens up to and including the response of `step`.

    `~step` stands for the summary that was written before that step.
    """
    if step < 0:
        return _summary_example(dialogue.steps[: ~step + 1], settings)
    turns = dialogue.steps[: step + 1]
    begin = max((index for index, turn in enumerate(turns) if turn.context_reset), default=0)
    token_ids: list[int] = []
    labels: list[int] = []
    for index, turn in enumerate(turns[begin:], begin):
        response, has_loss = turn.generation.token_ids, index == step or not settings.mask_history
        token_ids += turn.prompt_token_ids
        if not response:
            return Reason.NO_TOKENS
        if not _is_of(settings.chat, token_ids, turn.generation):
            return Reason.OTHER_TOKENS
        token_ids += response
        labels += [IGNORED] * len(turn.prompt_token_ids)
        labels += response if has_loss else [IGNORED] * len(response)
    return _with_images(turns, turns[-1].seen, token_ids, labels, settings)


def _summary_example(turns: Sequence[ExportedStep], settings: ExportSettings) -> Example | Reason:
    """Make an example of the summary that was written before the last of these turns."""
    (compaction,) = turns[-1].seen.compactions
    prompt, response = list(compaction.prompt_token_ids), list(compaction.generation.token_ids)
    if not _is_of(settings.chat, prompt, compaction.generation):
        return Reason.OTHER_TOKENS
    before = turns[-2].seen.whole_from if len(turns) > 1 else 0
    if not settings.media.isdisjoint(response):
        return Reason.MEDIA
    seen = ExportedContext(compaction.images, before)
    return _with_images(turns[:-1], seen, prompt + response, [IGNORED] * len(prompt) + response, settings)


def _with_images(
    turns: Sequence[ExportedStep],
    seen: ExportedContext,
    token_ids: list[int],
    labels: list[int],
    settings: ExportSettings,
) -> Example | Reason:
    """Make an example of these tokens with the images that the context showed."""
    if not _is_shown(turns[seen.whole_from :], token_ids, len(seen.images), settings):
        return Reason.MEDIA
    paths = {digest_of(path) or path: path for turn in turns for path in turn.observation.images}
    recorded = (paths[image] for image in seen.images if image in paths)
    images = [image for path in recorded if (image := recorded_image(path, settings.images)) is not None]
    if len(images) < len(seen.images):
        return Reason.LOST_IMAGE
    sizes = [image_size(str(path)) for path in images]
    if not all(_is_taken_as_it_is(size, settings.image_max_pixels) for size in sizes):
        return Reason.IMAGE
    return Example(np.array(token_ids, np.int32), np.array(labels, np.int32), tuple(map(str, images)))


def _is_of(chat: ChatTokenizer, context: Sequence[int], response: ExportedResponse) -> bool:
    """Return whether the model's tokenizer decodes the response's tokens to the recorded text.

    The text lacks the token that ended the response, and a character whose end was not sampled.
    """
    tokens = response.token_ids
    return any(
        read.rstrip(_BROKEN) == response.text.rstrip(_BROKEN)
        for shown in (tokens, tokens[:-1])
        for read in (chat.decode_after(context, shown), chat.decode(shown))
    )


def _is_shown(
    turns: Sequence[ExportedStep], token_ids: Sequence[int], images: int, settings: ExportSettings
) -> bool:
    """Return whether all tokens for media belong to images: a model or a task may have written some."""
    written = [turn.generation.token_ids for turn in turns] if images else [token_ids]
    if any(not settings.media.isdisjoint(tokens) for tokens in written):
        return False
    return not images or settings.image_start is None or token_ids.count(settings.image_start) == images


def _is_taken_as_it_is(size: tuple[int, int] | None, max_pixels: int) -> bool:
    """Return whether LLaMA-Factory leaves an image of that size unchanged, as the engine did."""
    short, long = sorted(size or (0, 0))
    return (
        _SMALLEST_PIXELS <= short * long <= max_pixels
        and short >= _SMALLEST_SIDE
        and long <= _STEEPEST * short
    )


def write_datasets(folder: Path, training: Iterable[Example], validation: Iterable[Example]) -> Path:
    """Write the folder that LLaMA-Factory loads as `tokenized_path`; equal examples give equal files."""
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
        "input_ids": (Column(Value("int32")), [row.input_ids for row in part]),
        "attention_mask": (Column(Value("int8")), [np.ones(len(row.input_ids), np.int8) for row in part]),
        "labels": (Column(Value("int32")), [row.labels for row in part]),
    }
    if any(row.images for row in part):
        columns["images"] = (Column(Value("string")), [list(row.images) or None for row in part])
    features = Features({name: kind for name, (kind, _) in columns.items()})
    return Dataset.from_dict({name: values for name, (_, values) in columns.items()}, features=features)
