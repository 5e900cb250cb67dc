"""Collects the samples of an update: chooses steps of the last iterations, and reads their tokens.

    shards of the last k iterations ─► candidates ─► draw ─► hold out ─► examples of the steps that were drawn

Shards are read twice: once for the outcomes that decide, once for the tokens of the chosen steps.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.config.plan import Config
from rl_agent.rollout.trajectories.manifest import Part, parts_of, read_parts
from rl_agent.trainer.llamafactory.dataset import select
from rl_agent.trainer.llamafactory.dataset.export import (
    Example,
    ExportedEpisode,
    ExportSettings,
    Reason,
    examples,
)
from rl_agent.trainer.llamafactory.dataset.unseen import iterations_read
from rl_agent.trainer.llamafactory.model import ServedVersion
from rl_agent.types import EpisodeKey

_OUTCOME = TypeAdapter(select.EpisodeOutcome)
_DIALOGUE = TypeAdapter(ExportedEpisode)
_IMAGE_START = "vision_start_token_id"
_MEDIA_TOKENS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    _IMAGE_START,
    "vision_end_token_id",
)
"""Keys of a vision model's config.json."""
_log = logging.getLogger(__name__)

Examples = dict[select.Candidate, Example]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples that an update trains on."""

    training: Examples
    validation: Examples
    iterations: tuple[int, ...]
    """Training iterations that were read, oldest first."""
    candidates: int
    """Number of steps from which they were drawn."""
    left_out: dict[str, int]
    """Number of steps that cannot be trained on as they were seen, by reason."""
    image_tokens: ImageTokens
    """The tokens that the trained model makes of an image."""

    @property
    def tasks(self) -> int:
        return len({candidate.key.task_id for candidate in self.training})


def collect_samples(config: Config, iteration: int, model: ServedVersion) -> Samples:
    """Choose the steps to train `model` on, and read their tokens. Raises StoreError for a damaged shard."""
    trainer = config.llamafactory
    iterations = iterations_read(config)
    shards = [parts_of(config.paths, "train", recent) for recent in iterations]
    candidates = select.Candidates()
    for position, parts in enumerate(shards):
        candidates.add(read_parts(parts, _OUTCOME), position, trainer)
    training, validation = _choose(candidates.steps, config, iteration)
    left_out = Counter({Reason.TOO_LONG: candidates.too_long})
    by_step = _examples(shards, [*training, *validation], _settings(config, model), left_out)
    held_out = frozenset(validation)
    samples = Samples(
        training={step: example for step, example in by_step.items() if step not in held_out},
        validation={step: example for step, example in by_step.items() if step in held_out},
        iterations=tuple(iterations),
        candidates=len(candidates.steps),
        left_out={str(reason): count for reason, count in left_out.items() if count},
        image_tokens=ImageTokens.load(model.files),
    )
    for reason, count in samples.left_out.items():
        _log.warning("positive steps that are left out: %d %s", count, reason)
    return samples


def _choose(
    candidates: Sequence[select.Candidate], config: Config, iteration: int
) -> tuple[list[select.Candidate], list[select.Candidate]]:
    """Draw the steps to train on, and those to hold out for validation."""
    trainer = config.llamafactory
    drawn = select.draw(
        candidates,
        trainer.positive_samples_to_train,
        trainer.recency_bias_power,
        select.seeded(config.seed, iteration),
        by=trainer.draw_by,
    )
    if not trainer.do_eval:
        return drawn, []
    return select.hold_out(drawn, trainer.val_split_ratio, seed=config.seed)


def _examples(
    shards: Sequence[Sequence[Part]],
    chosen: Sequence[select.Candidate],
    terms: ExportSettings,
    left_out: Counter[Reason],
) -> Examples:
    """Make examples of the chosen steps, in the order of the files; count those that are left out."""
    chosen_examples: Examples = {}
    for position, parts in enumerate(shards):
        of_step = {
            (candidate.key, candidate.step): candidate
            for candidate in chosen
            if candidate.position == position
        }
        steps: dict[EpisodeKey, list[int]] = defaultdict(list)
        for key, step in of_step:
            steps[key].append(step)
        for key, step, result in examples(read_parts(parts, _DIALOGUE), steps, terms) if steps else ():
            if isinstance(result, Example):
                chosen_examples[of_step[key, step]] = result
            else:
                left_out[result] += 1
    return chosen_examples


def _settings(config: Config, model: ServedVersion) -> ExportSettings:
    return ExportSettings(
        chat=ChatTokenizer.load(str(model.files), config.model.chat_template_kwargs),
        media=frozenset(model.config[key] for key in _MEDIA_TOKENS if model.config.get(key) is not None),
        image_start=model.config.get(_IMAGE_START),
        mask_history=config.llamafactory.mask_history,
        image_max_pixels=config.llamafactory.image_max_pixels,
        images=config.paths.images,
    )
