"""Collects the samples of an update: chooses steps of the last iterations, and reads their tokens.

    shards of the last k iterations ─► candidates ─► draw ─► hold out ─► examples of the steps that were drawn

Shards are read twice: once for the outcomes that decide, once for the tokens of the chosen steps.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

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
    training, validation = select.choose(candidates.steps, config, iteration)
    left_out = Counter({Reason.TOO_LONG: candidates.too_long})
    by_step = _examples(shards, [*training, *validation], ExportSettings.of(config, model), left_out)
    held_out = frozenset(validation)
    samples = Samples(
        training={step: example for step, example in by_step.items() if step not in held_out},
        validation={step: example for step, example in by_step.items() if step in held_out},
        iterations=tuple(iterations),
        candidates=len(candidates.steps),
        left_out={str(reason): count for reason, count in left_out.items() if count},
    )
    for reason, count in samples.left_out.items():
        _log.warning("positive steps that are left out: %d %s", count, reason)
    return samples


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
