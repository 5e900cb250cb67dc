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
from typing import Any, ClassVar, Protocol, TypeAlias

from pydantic import TypeAdapter

from rl_agent.paths import RunPaths
from rl_agent.rollout.comparison import Comparison, is_cut, longest_response
from rl_agent.rollout.sample import Sample
from rl_agent.rollout.trajectories.growing import GrowingIteration
from rl_agent.types import EpisodeKey, Split, Status, Trajectory


class EndedEpisode(Protocol):
    """The part of an episode that says how it went."""

    @property
    def status(self) -> Status: ...
    @property
    def reward(self) -> float | None: ...


def is_comparable(episode: EndedEpisode) -> bool:
    """Return whether an episode counts among its siblings: a failure is not a reward of 0."""
    return episode.status is Status.COMPLETED and episode.reward is not None


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """A subset of `Trajectory`, read in a tenth of the time; for where lengths do not matter."""

    key: EpisodeKey
    status: Status
    reward: float | None
    rewards: dict[str, float] = field(default_factory=dict)
    longest_response: ClassVar[int] = 0
    is_cut: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """The outcome of an episode that this process has counted or recorded."""

    key: EpisodeKey
    status: Status
    reward: float | None
    rewards: dict[str, float]
    longest_response: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class _Response:
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class _Turn:
    generation: _Response


@dataclass(frozen=True, slots=True)
class OutcomeWithLengths:
    """The same with its responses, for a comparison that asks how long they are."""

    key: EpisodeKey
    status: Status
    reward: float | None
    steps: tuple[_Turn, ...]
    rewards: dict[str, float] = field(default_factory=dict)

    @property
    def longest_response(self) -> int:
        return longest_response(self.steps)

    @property
    def is_cut(self) -> bool:
        return is_cut(self.steps)


_OUTCOME = TypeAdapter(RecordedOutcome)
_OUTCOME_WITH_LENGTHS = TypeAdapter(OutcomeWithLengths)
AnyOutcome: TypeAlias = RecordedOutcome | OutcomeWithLengths | KnownOutcome


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
        reads_lengths = comparison is not None and comparison.reads_lengths
        adapter: TypeAdapter[Any] = _OUTCOME_WITH_LENGTHS if reads_lengths else _OUTCOME
        self._episodes: GrowingIteration[AnyOutcome] = GrowingIteration(
            paths, split, iteration, adapter, run_id=run_id, leave_out=known_files
        )
        self._known: deque[KnownOutcome] = deque()
        """Added, and not looked at yet; one thread appends while another takes."""
        self._seen: set[EpisodeKey] = set()
        self._group_size = group_size
        self._siblings: dict[tuple[str, int], list[AnyOutcome]] = {}
        self._begun = 0
        """End, in the sample, of the last group that has begun."""

    @property
    def has_reserve(self) -> bool:
        return self._comparison is not None and self._sample.asked < len(self._sample)

    def add(self, trajectory: Trajectory) -> None:
        """Take the outcome of an episode of the `known_files`, for the next look."""
        if self.has_reserve:
            steps = trajectory.steps
            sizes = longest_response(steps), is_cut(steps)
            rewards = trajectory.reward, trajectory.rewards
            self._known.append(KnownOutcome(trajectory.key, trajectory.status, *rewards, *sizes))

    def look(self) -> None:
        """Look at what was recorded since the last time. Raises StoreError for a damaged file."""
        if not self.has_reserve:
            return
        while self._known:
            self._add(self._known.popleft())
        for outcome in self._episodes.new():
            self._add(outcome)
        # As many as are left out; and what has begun is finished, whatever is known of its cause.
        count = max(self._sample.asked + self.left_out * self._group_size, self._begun, self.asked)
        self.asked = min(count, len(self._sample))

    def _add(self, outcome: AnyOutcome) -> None:
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


def is_replaced(siblings: Iterable[AnyOutcome], comparison: Comparison) -> bool:
    """Return whether another group is sampled in place of one; what was given up is not begun anew."""
    siblings = list(siblings)
    is_given_up = any(outcome.status is Status.ABANDONED for outcome in siblings)
    compared: list[Any] = [outcome for outcome in siblings if is_comparable(outcome)]  # have a reward
    return not is_given_up and not comparison.is_informative(compared)
