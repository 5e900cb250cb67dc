"""Draws the work of iterations and the times of machines from a seed, the same for every setup."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from rl_agent.errors import UsageError
from rl_agent.simulation.spot import Change

MOST_OF_LONGEST = 0.6
"""Mean lengths grow no further."""


@dataclass(frozen=True, slots=True)
class Work:
    """Lengths are log-normal, cut at `longest`, with `mean_tokens` as their mean after the cut."""

    prompts: int
    group_size: int
    prompt_tokens: int
    mean_tokens: float
    longest: int
    sigma: float
    mini_batches: int
    seed: int
    order: Literal["arrival", "shuffled"] = "arrival"
    """The order of training, as `trainer.batch.order`."""
    length_growth: float = 0.0
    """The growth of the mean length from one iteration to the next, up to `MOST_OF_LONGEST` of `longest`."""
    turns: int = 1
    """The responses of an episode, each to all before it and what its environment has added."""
    environment_s: float = 0.0
    """The mean time from a response to the next turn; log-normal with the same `sigma`."""
    observation_tokens: int = 0
    """The tokens, images included, that each turn after the first adds to the prompt."""

    def added_tokens(self, turn: int) -> int:
        """Return the tokens of the prompt of a turn, from 0, without the responses in it."""
        return self.prompt_tokens + turn * self.observation_tokens

    def steps_of(self, iteration: int) -> list[list[int]]:
        """Return, for each group, the step of each of its responses, where they are dealt."""
        places = list(range(self.prompts * self.group_size))
        random.Random(f"deal:{self.seed}:{iteration}").shuffle(places)
        step = {place: rank * self.mini_batches // len(places) for rank, place in enumerate(places)}
        starts = range(0, len(places), self.group_size)
        return [[step[start + sibling] for sibling in range(self.group_size)] for start in starts]

    def ends_step(self, groups: int) -> bool:
        """Return whether a step ends with that group, in order of arrival, as `trainer.order` cuts."""
        steps = min(self.mini_batches, self.prompts)
        return -(-groups * steps // self.prompts) * self.prompts // steps == groups

    def pauses(self, iteration: int) -> list[float]:
        """Return the seconds after every response of an iteration."""
        random_ = random.Random(f"environment:{self.seed}:{iteration}")
        count = self.prompts * self.group_size * self.turns
        scale = self.environment_s * math.exp(-(self.sigma**2) / 2)
        return [scale * random_.lognormvariate(0.0, self.sigma) for _ in range(count)]

    def lengths(self, iteration: int) -> list[int]:
        """Return the tokens of every response of an iteration, an episode's turns in order."""
        random_ = random.Random(f"{self.seed}:{iteration}")
        grown = self.mean_tokens * (1 + self.length_growth) ** (iteration - 1)
        mean = min(grown, max(self.mean_tokens, MOST_OF_LONGEST * self.longest))
        mu = _mu(mean, self.longest, self.sigma)
        count = self.prompts * self.group_size * self.turns
        return [
            max(1, min(self.longest, round(random_.lognormvariate(mu, self.sigma)))) for _ in range(count)
        ]


def _mu(mean: float, longest: int, sigma: float) -> float:
    """Return the mu of the log-normal distribution whose mean, cut at `longest`, is `mean`."""
    low, high = math.log(mean) - 10 * sigma - 1, math.log(longest) + 10 * sigma + 1
    normal = NormalDist()
    for _ in range(60):
        mu = (low + high) / 2
        cut = (math.log(longest) - mu) / sigma
        below = math.exp(mu + sigma**2 / 2) * normal.cdf(cut - sigma)
        if below + longest * (1 - normal.cdf(cut)) < mean:
            low = mu
        else:
            high = mu
    return (low + high) / 2


def drawn_trace(*, hours: float, most: int, up_s: float, down_s: float, seed: int) -> list[Change]:
    """Draw the trace of `most` places that have a machine for `up_s` on average, then none for `down_s`.

    One loss in two comes with a notice. The trace begins with the machines that are there then.
    """
    random_ = random.Random(f"trace:{seed}")
    changes: list[Change] = []
    for _ in range(most):
        is_up = random_.random() < up_s / (up_s + down_s)
        at_s = 0.0
        if is_up:
            changes.append(Change(0.0, is_join=True))
        while True:
            at_s += random_.expovariate(1 / (up_s if is_up else down_s))
            if at_s >= hours * 3600:
                break
            is_up = not is_up
            changes.append(Change(at_s, is_join=is_up, with_notice=not is_up and random_.random() < 0.5))
    return sorted(changes, key=lambda change: change.at_s)


def check_trace(changes: Sequence[Change], name: str) -> None:
    """Refuse a trace that is empty, or takes a machine where there is none. Raises UsageError."""
    if not changes:
        raise UsageError(f"{name}: the trace has no line with a change")
    machines = 0
    for change in changes:
        machines += 1 if change.is_join else -1
        if machines < 0:
            raise UsageError(f"{name}: at {change.at_s:g} s a machine goes where there is none")


def mean_machines(changes: Sequence[Change], until_s: float) -> float:
    """Return how many there are on average until then."""
    machine_s = sum((1 if c.is_join else -1) * max(0.0, until_s - c.at_s) for c in changes)
    return machine_s / until_s


def trace_text(changes: Sequence[Change]) -> str:
    """Return the trace as `emulate_spot.sh` and `what-if` read it."""
    rows = [
        f"{c.at_s:.1f},{'+1' if c.is_join else '-1'},{'notice' if c.with_notice else 'kill'}" for c in changes
    ]
    return "\n".join(["time_s,change,how", *rows]) + "\n"
