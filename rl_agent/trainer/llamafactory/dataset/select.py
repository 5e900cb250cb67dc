"""Chooses the steps to train on. Pure.

A step is a candidate if its episode is positive (completed, reward at or above the threshold), if the
action changed what the environment shows (screen environments), if the response ended by itself, and if its
context is not longer than `cutoff_len`. A response that was cut off by the token limit is a candidate only
where the environment rewarded that very step: nobody knows what the others would have become. A summary that
the model wrote for itself (`context=summary`) is a candidate like a response.

Of n candidates, `draw` takes m without replacement. It draws units, and of a unit one step at a time:

    group     the successful attempts at one task of one iteration; each task that was solved counts alike,
              however often, and in however many steps
    episode   each success counts alike; so an easy task counts as often as it was solved
    step      each step counts alike; so a long episode counts as often as it has steps

Unit i has the weight w_i = (p_i + 1) ** power, where p_i is the position of its iteration among those read
(oldest 0). The draws are successive: each takes one of the units that have a step left with probability
proportional to its weight. Where every unit has one step that is

    P(a, then b, then c, ...) = w_a / W * w_b / (W - w_a) * w_c / (W - w_a - w_b) * ...    W = sum of w_i

With four iterations of equal size and power 2 the first draw falls on them with 1/30, 4/30, 9/30 and 16/30;
as the newest run out the shares even out, and m = n takes everything. Power 0 is uniform. Within a group each
episode that has a step left is equally likely, and within an episode each step.

`hold_out` sets tasks aside for validation by a digest of their name, so that a task is held out in every
update or in none.
"""

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from rl_agent.config.plan import Config
from rl_agent.config.sections.llamafactory import DrawUnit, TrainerConfig
from rl_agent.rollout.trajectories.images import digest_of
from rl_agent.types import EpisodeKey, Status, reaches

UnitName = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ResponseOutcome:
    """The part of a `Generation` that the choice depends on."""

    finish_reason: str
    tokens: Annotated[int, Field(validation_alias="token_ids"), BeforeValidator(len)]
    """Number of sampled tokens, the end-of-turn token included."""


def order_of(images: Iterable[str]) -> int:
    """Return a digest of which images are shown in which order, named by their own digests or paths."""
    names = "\n".join(digest_of(image) or Path(image).name for image in images)
    return int.from_bytes(hashlib.blake2b(names.encode(), digest_size=8).digest())


Order = Annotated[int | None, Field(validation_alias="images"), BeforeValidator(order_of)]


@dataclass(frozen=True, slots=True)
class CompactionOutcome:
    """The part of a `Compaction` that the choice depends on."""

    generation: ResponseOutcome
    prompt_tokens: Annotated[int, Field(validation_alias="prompt_token_ids"), BeforeValidator(len)]
    images: Annotated[int, BeforeValidator(len)]
    order: Order = None


@dataclass(frozen=True, slots=True)
class ContextOutcome:
    """The part of a `SeenContext` that is compared with what is exported."""

    images: Annotated[int, BeforeValidator(len)] = 0
    compactions: tuple[CompactionOutcome, ...] = ()
    order: Order = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The part of a `Step` that the choice depends on."""

    generation: ResponseOutcome
    reward: float
    changed: bool
    prompt_tokens: Annotated[int, Field(validation_alias="prompt_token_ids"), BeforeValidator(len)]
    context_reset: bool = False
    seen: ContextOutcome = ContextOutcome()


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """The part of a `Trajectory` that the choice depends on; read without its tokens."""

    key: EpisodeKey
    iteration: int
    status: Status
    reward: float | None
    steps: tuple[StepOutcome, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One step that may be trained on."""

    position: int
    """Position of its iteration among those read; the oldest is 0."""
    iteration: int
    key: EpisodeKey
    step: int
    """Index in the episode; `~index` for the summary that was written before that step."""
    tokens: int = field(default=0, compare=False)
    """The tokens of its context and its response, by the outcomes that were read."""
    sampled: int = field(default=0, compare=False)
    """Tokens of its response."""
    images: int = field(default=0, compare=False)
    """The number of images in its context."""
    order: int | None = field(default=None, compare=False)
    """The order of these images, by `order_of`."""


@dataclass(slots=True)
class Candidates:
    """The candidate steps of the iterations that are read."""

    steps: list[Candidate] = field(default_factory=list)
    too_long: int = 0
    """Number of steps that are no candidates only because their context is too long."""

    def add(self, outcomes: Iterable[EpisodeOutcome], position: int, config: TrainerConfig) -> None:
        """Add the steps of one iteration's positive episodes, in the order of the file."""
        for outcome in outcomes:
            if not is_positive(outcome, config):
                continue
            for index, (step, tokens) in enumerate(_with_context(outcome.steps)):
                for summary in step.seen.compactions:
                    if summary.generation.finish_reason == "stop":
                        length = summary.prompt_tokens + summary.generation.tokens
                        self._add(outcome, position, config, ~index, length, summary, summary)
                if _is_trainable(step, config):
                    self._add(outcome, position, config, index, tokens, step, step.seen)

    def _add(
        self,
        outcome: EpisodeOutcome,
        position: int,
        config: TrainerConfig,
        step: int,
        tokens: int,
        drawn: StepOutcome | CompactionOutcome,
        seen: ContextOutcome | CompactionOutcome,
    ) -> None:
        if tokens > config.cutoff_len:
            self.too_long += 1
            return
        sampled = drawn.generation.tokens
        self.steps.append(
            Candidate(
                position,
                outcome.iteration,
                outcome.key,
                step,
                tokens=tokens,
                sampled=sampled,
                images=seen.images,
                order=seen.order,
            )
        )


def is_positive(outcome: EpisodeOutcome, config: TrainerConfig) -> bool:
    """Return whether an episode is complete with a reward at or above the threshold."""
    if outcome.status is not Status.COMPLETED or outcome.reward is None:
        return False
    return reaches(outcome.reward, config.reward_threshold)


def _with_context(steps: Iterable[StepOutcome]) -> Iterator[tuple[StepOutcome, int]]:
    """Pair each step with the length of its context in tokens, its response included."""
    tokens = 0
    for step in steps:
        before = 0 if step.context_reset else tokens
        tokens = before + step.prompt_tokens + step.generation.tokens
        yield step, tokens


def _is_trainable(step: StepOutcome, config: TrainerConfig) -> bool:
    if config.filter_unchanged_steps and not step.changed:
        return False
    reason = step.generation.finish_reason
    return reason == "stop" or (reason == "length" and step.reward > 0)


def choose(
    candidates: Sequence[Candidate], config: Config, iteration: int
) -> tuple[list[Candidate], list[Candidate]]:
    """Draw the steps to train on, and those to hold out for validation."""
    trainer = config.llamafactory
    drawn = draw(
        candidates,
        trainer.positive_samples_to_train,
        trainer.recency_bias_power,
        seeded(config.seed, iteration),
        by=trainer.draw_by,
    )
    return hold_out(drawn, trainer.val_split_ratio, seed=config.seed) if trainer.do_eval else (drawn, [])


def seeded(seed: int, iteration: int) -> random.Random:
    """Make the random generator of an update, so that a repeated update chooses the same steps."""
    return random.Random(f"update/{seed}/{iteration}")


def unit_of(candidate: Candidate, by: DrawUnit) -> UnitName:
    """Name the unit that a candidate belongs to; a unit's name is a prefix of its parts' names."""
    key = candidate.key
    names = {
        "group": (key.task_id, candidate.iteration, key.group),
        "episode": (key.task_id, candidate.iteration, key.group, key.attempt),
        "step": (key.task_id, candidate.iteration, key.group, key.attempt, candidate.step),
    }
    return names[by]


def draw(
    candidates: Sequence[Candidate],
    count: int,
    power: float,
    rng: random.Random,
    *,
    by: DrawUnit = "group",
) -> list[Candidate]:
    """Draw at most `count` candidates without replacement, with the probabilities that the module describes.

    The result is in random order.
    """
    drawn = _in_order(candidates, power, rng, by)[:count]
    rng.shuffle(drawn)
    return drawn


def _in_order(
    candidates: Iterable[Candidate], power: float, rng: random.Random, by: DrawUnit
) -> list[Candidate]:
    """Sort all candidates into the order in which they are drawn.

    Clocks that tick at exponentially distributed intervals do so in the order of successive draws in
    proportion to their rates. So each unit has a clock of rate w, and a step of it is drawn at each tick.
    For units of one step the times are the keys log(u) / w, u uniform, of Efraimidis and Spirakis (2006).
    """
    units: dict[UnitName, list[Candidate]] = {}
    for candidate in candidates:
        units.setdefault(unit_of(candidate, by), []).append(candidate)
    ticks: list[tuple[float, Candidate]] = []
    for members in units.values():
        time = 0.0
        for candidate in _within(members, rng, by):
            time -= math.log1p(-rng.random()) / (candidate.position + 1) ** power
            ticks.append((time, candidate))
    ticks.sort(key=lambda tick: tick[0])
    return [candidate for _, candidate in ticks]


def _within(members: list[Candidate], rng: random.Random, by: DrawUnit) -> list[Candidate]:
    """Sort the steps of a unit into the order in which they are drawn."""
    if len(members) == 1:
        return members
    return _in_order(members, 0.0, rng, "episode" if by == "group" else "step")


def hold_out(
    drawn: Sequence[Candidate], ratio: float, *, seed: int
) -> tuple[list[Candidate], list[Candidate]]:
    """Split into a training and a validation part, with no task in both.

    A task is held out if a number that its name and the seed make, uniform from 0 to 1, is below `ratio`. At
    least one task is in each part; where there is only one, nothing is held out.
    """
    shares = {task: _share(task, seed) for task in {candidate.key.task_id for candidate in drawn}}
    if len(shares) < 2:
        return list(drawn), []
    smallest, *_, largest = sorted(shares, key=lambda task: shares[task])
    held_out = {task for task, share in shares.items() if share < ratio} - {largest} | {smallest}
    training = [candidate for candidate in drawn if candidate.key.task_id not in held_out]
    return training, [candidate for candidate in drawn if candidate.key.task_id in held_out]


def _share(task_id: str, seed: int) -> float:
    name = f"validation/{seed}/{(task_id,)!r}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64
