"""Which steps are trained on: pure functions from outcomes to chosen steps.

A step is a candidate if its episode is positive (completed, reward at or above the threshold), if the
action changed what the environment shows (screen environments), if the response has at least
`min_response_tokens`, and if it ended by itself. A response cut off by the token limit is a candidate only
where the environment rewarded that very step: training ends every response with the end-of-turn token, which
such a response never reached.

Of n candidates, `draw` takes m without replacement. Candidate i has the weight w_i = (p_i + 1) ** power,
where p_i is the position of its iteration among those read (oldest 0). The draws are successive: each takes
one of those left with probability proportional to its weight,

    P(a, then b, then c, ...) = w_a / W * w_b / (W - w_a) * w_c / (W - w_a - w_b) * ...    W = sum of w_i

With four iterations of equal size and power 2 the first draw falls on them with 1/30, 4/30, 9/30 and 16/30;
as the newest run out the shares even out, and m = n takes everything. Power 0 is uniform.
"""

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

from pydantic import BeforeValidator, Field

from rl_agent.types import EpisodeKey, Status

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Response:
    """The part of a `Generation` that decides."""

    finish_reason: str
    tokens: Annotated[int, Field(validation_alias="token_ids"), BeforeValidator(len)]
    """How many were sampled, the end-of-turn token included."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The part of a `Step` that decides."""

    generation: Response
    reward: float
    changed: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The part of a `Trajectory` that decides; read without its tokens."""

    key: EpisodeKey
    status: Status
    reward: float | None
    steps: tuple[StepOutcome, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One step that may be trained on."""

    position: int
    """Of its iteration among those read; the oldest is 0."""
    key: EpisodeKey
    step: int
    """Index in the episode."""


class Rules(Protocol):
    """What `config.TrainerConfig` says about candidates."""

    @property
    def reward_threshold(self) -> float: ...
    @property
    def filter_unchanged_steps(self) -> bool: ...
    @property
    def min_response_tokens(self) -> int: ...


def is_positive(outcome: Outcome, rules: Rules) -> bool:
    is_complete = outcome.status is Status.COMPLETED and outcome.reward is not None
    return is_complete and outcome.reward >= rules.reward_threshold  # type: ignore[operator]


def candidates(outcomes: Iterable[Outcome], position: int, rules: Rules) -> list[Candidate]:
    """Steps of one iteration's positive episodes, in the order of the file."""
    return [
        Candidate(position, outcome.key, index)
        for outcome in outcomes
        if is_positive(outcome, rules)
        for index, step in enumerate(outcome.steps)
        if _is_trainable(step, rules)
    ]


def _is_trainable(step: StepOutcome, rules: Rules) -> bool:
    if rules.filter_unchanged_steps and not step.changed:
        return False
    if step.generation.tokens < rules.min_response_tokens:
        return False
    reason = step.generation.finish_reason
    return reason == "stop" or (reason == "length" and step.reward > 0)


def seeded(seed: int, iteration: int) -> random.Random:
    """The randomness of one update; a repeated update chooses the same steps."""
    return random.Random(f"update/{seed}/{iteration}")


def draw(pool: Sequence[Candidate], count: int, power: float, rng: random.Random) -> list[Candidate]:
    """At most `count` candidates without replacement, in random order; the module says how likely each is.

    Efraimidis and Spirakis (2006): the largest of the keys u ** (1 / w), with u uniform, are distributed as
    successive draws. Their logarithms are compared, which does not underflow for large weights.
    """
    keyed = [(math.log1p(-rng.random()) / (one.position + 1) ** power, one) for one in pool]
    drawn = [one for _, one in heapq.nlargest(count, keyed, key=lambda pair: pair[0])]
    rng.shuffle(drawn)
    return drawn


def split(drawn: Sequence[_T], ratio: float, *, do_eval: bool) -> tuple[list[_T], list[_T]]:
    """Training and validation part. Validation holds max(1, floor(n * ratio)), nothing where n < 2."""
    if not do_eval or len(drawn) < 2:
        return list(drawn), []
    count = max(1, math.floor(len(drawn) * ratio))
    return list(drawn[count:]), list(drawn[:count])
