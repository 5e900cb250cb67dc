"""Compares a group's episodes as the loss does, and decides whether they can move the policy. Pure.

    reward    r_i, lowered for its length where `overlong` is penalty (Yu et al. 2025, DAPO, eq. 13), by
                  0                    where |o| ≤ L − C          L: longest_response
                  p (|o| − L + C) / C  where L − C < |o| ≤ L      C: overlong_cache
                  p                    where L < |o|              p: overlong_penalty
    parts     what is compared with the siblings, each with its weight: the reward of weight 1, or where
              `rewards` is each every named reward of weight w_k, and r_i − Σ_k w_k r_ik of weight 1
    trained   every episode; where `overlong` is mask, those of which no response was cut off
    teaches   an episode that is trained has an advantage other than 0

|o| is the longest response of the episode, for each of its turns has room for L tokens. A masked episode
still counts among its siblings: it was sampled and judged like them, and without it the mean that the others
are compared with would be that of short responses.

The rollout, which samples other groups for those that do not teach, and the trainer, which leaves them out,
ask the same question here.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_agent.config.sections.grpo import LossSettings


class ComparedEpisode(Protocol):
    """An episode that has a reward."""

    @property
    def reward(self) -> float: ...
    @property
    def rewards(self) -> Mapping[str, float]:
        """Return its named rewards, not weighted."""

    @property
    def longest_response(self) -> int: ...
    @property
    def is_cut(self) -> bool:
        """Return whether a response of it ended where its tokens did."""


def longest_response(turns: Iterable[Any]) -> int:
    """Return the tokens of an episode's longest response; turns are `types.Step`s, or as much of them."""
    return max((len(turn.generation.token_ids) for turn in turns), default=0)


def is_cut(turns: Iterable[Any]) -> bool:
    """Return whether a response of the episode ended where its tokens did."""
    return any(turn.generation.finish_reason == "length" for turn in turns)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison that one loss makes."""

    loss: LossSettings

    @property
    def compares_each(self) -> bool:
        """Return whether named rewards are compared one by one."""
        return self.loss.rewards == "each"

    def penalty(self, attempt: ComparedEpisode) -> float:
        """Return what is taken off the reward; 0 or more."""
        if self.loss.overlong != "penalty":
            return 0.0
        cache = self.loss.penalized_tokens
        beyond = attempt.longest_response - (self.loss.longest_response - cache)
        return self.loss.overlong_penalty * min(max(beyond / cache, 0.0), 1.0)

    def reward(self, attempt: ComparedEpisode) -> float:
        """Return what advantages are made of, but for a KL term."""
        return attempt.reward - self.penalty(attempt)

    def parts(self, attempts: Sequence[ComparedEpisode]) -> list[tuple[float, list[float]]]:
        """Return the weight and the values, one an attempt, of all that is compared; the last is the rest."""
        rest = [self.reward(attempt) for attempt in attempts]
        names = {name for attempt in attempts for name in attempt.rewards} if self.compares_each else ()
        parts = []
        for name in sorted(names):
            weight = self.loss.reward_weights.get(name, 1.0)
            values = [attempt.rewards.get(name, 0.0) for attempt in attempts]
            rest = [whole - weight * value for whole, value in zip(rest, values, strict=True)]
            parts.append((weight, values))
        return [*parts, (1.0, rest)]

    def is_masked(self, attempt: ComparedEpisode) -> bool:
        """Return whether it counts among its siblings and is not trained on itself."""
        return self.loss.overlong == "mask" and attempt.is_cut

    def is_informative(self, attempts: Sequence[ComparedEpisode]) -> bool:
        """Return whether the policy's loss can have a gradient; a KL in the reward is not known here."""
        return any(weight and self._teaches(part, attempts) for weight, part in self.parts(attempts))

    def _teaches(self, rewards: Sequence[float], attempts: Sequence[ComparedEpisode]) -> bool:
        """Return whether these rewards of the attempts give one that is trained on an advantage."""
        trained = [r for r, attempt in zip(rewards, attempts, strict=True) if not self.is_masked(attempt)]
        if self.loss.advantage == "reinforce":
            return any(trained)
        if len(set(rewards)) < 2:
            return False
        mean = statistics.fmean(rewards)
        return any(not math.isclose(reward, mean, rel_tol=1e-9, abs_tol=1e-12) for reward in trained)
