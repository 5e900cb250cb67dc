"""Other groups in place of those without an advantage: DAPO's dynamic sampling (Yu et al. 2025).

    what was recorded ─► groups that are complete ─ none teaches anything ─► one more of the sample's reserve

The rollout's master asks while the rollout runs, so that others are sampled before the last group has ended.
How much of the reserve is asked for follows from what is recorded alone: after a kill it is what it was, and
no group is sampled twice.

What the master counts or records itself is given to `add`, and its file is not read for it. Of the files that
other ranks write meanwhile only outcomes are read: their episodes are read, and count, when it is decided up
to where each file counts.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from rl_agent.paths import RunPaths
from rl_agent.rollout.comparison import Comparison, is_cut, longest_response
from rl_agent.rollout.sample import Sample
from rl_agent.rollout.trajectories.growing import GrowingIteration
from rl_agent.types import EpisodeKey, Split, Status, Trajectory


@dataclass(frozen=True, slots=True)
class _Response:
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class _Turn:
    generation: _Response


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """The fields of `Trajectory` that an outcome needs; the others are not read."""

    key: EpisodeKey
    status: Status
    reward: float | None
    steps: tuple[_Turn, ...]
    rewards: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiblingOutcome:
    """The part of an episode that decides whether its group teaches anything."""

    key: EpisodeKey
    status: Status
    reward: float | None
    rewards: dict[str, float] = field(default_factory=dict)
    longest_response: int = 0
    is_cut: bool = False

    @classmethod
    def of(cls, episode: Trajectory | RecordedEpisode) -> "SiblingOutcome":
        rewards = episode.reward, episode.rewards
        return cls(
            episode.key, episode.status, *rewards, longest_response(episode.steps), is_cut(episode.steps)
        )


def is_comparable(episode: Trajectory | SiblingOutcome) -> bool:
    """Return whether an episode counts among its siblings: a failure is not a reward of 0."""
    return episode.status is Status.COMPLETED and episode.reward is not None


_RECORDED = TypeAdapter(RecordedEpisode)


class Resampling:
    """The resampling of one iteration; where its sample has no reserve, nothing is read."""

    def __init__(
        self,
        sample: Sample,
        paths: RunPaths,
        split: Split,
        iteration: int,
        *,
        run_id: str,
        group_size: int,
        comparison: Comparison | None,
        known_files: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """Begin with nothing read; `comparison` is the trainer's, None where nothing is left out.

        Episodes in `known_files`, names without `.checkpoint`, come through `add`.
        """
        self.left_out = 0
        """Groups that are complete and teach nothing."""
        self.asked = sample.asked
        """The first so many episodes of the sample are asked for by now."""
        self._sample = sample
        self._comparison = comparison
        self._episodes = GrowingIteration(
            paths, split, iteration, _RECORDED, run_id=run_id, leave_out=known_files
        )
        self._known: deque[SiblingOutcome] = deque()
        """Added, and not looked at yet; one thread appends while another takes."""
        self._seen: set[EpisodeKey] = set()
        self._group_size = group_size
        self._siblings: dict[tuple[str, int], list[SiblingOutcome]] = {}
        self._begun = 0
        """End, in the sample, of the last group that has begun."""

    @property
    def has_reserve(self) -> bool:
        return self._comparison is not None and self._sample.asked < len(self._sample)

    def add(self, trajectory: Trajectory) -> None:
        """Take the outcome of an episode of the `known_files`, for the next look."""
        if self.has_reserve:
            self._known.append(SiblingOutcome.of(trajectory))

    def look(self) -> None:
        """Look at what was recorded since the last time. Raises StoreError for a damaged file."""
        if not self.has_reserve:
            return
        while self._known:
            self._add(self._known.popleft())
        for episode in self._episodes.new():
            self._add(SiblingOutcome.of(episode))
        # As many as are left out; and what has begun is finished, whatever is known of its cause.
        count = max(self._sample.asked + self.left_out * self._group_size, self._begun, self.asked)
        self.asked = min(count, len(self._sample))

    def _add(self, outcome: SiblingOutcome) -> None:
        if outcome.key in self._seen:
            return
        self._seen.add(outcome.key)
        group = self._sample.index(outcome.key) // self._group_size
        self._begun = max(self._begun, (group + 1) * self._group_size)
        name = (outcome.key.task_id, outcome.key.group)
        siblings = self._siblings.setdefault(name, [])
        siblings.append(outcome)
        if len(siblings) == self._group_size:
            assert self._comparison is not None
            self.left_out += is_replaced(self._siblings.pop(name), self._comparison)


def is_replaced(siblings: Iterable[SiblingOutcome], comparison: Comparison) -> bool:
    """Return whether another group is sampled in place of one; what was given up is not begun anew."""
    siblings = list(siblings)
    is_given_up = any(outcome.status is Status.ABANDONED for outcome in siblings)
    compared: list[Any] = [outcome for outcome in siblings if is_comparable(outcome)]  # have a reward
    return not is_given_up and not comparison.is_informative(compared)
