"""Converts episodes to what a trainer needs: token sequences, which tokens the policy chose, and a reward.

A trajectory becomes one segment as long as its context only grew; where the whole context was sent again
(`context_reset`), a new segment begins. A summary that the policy wrote of earlier steps is a segment of its
own. Every token the engine sampled is a response token of exactly one
segment and carries the engine's logprob; everything else is context and is never trained on.

A collector records no token that an engine cannot have sampled. Where one is stored all the same (a damaged
file, or one of another program), its group is marked, and rejected rather than trained on.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rl_agent.engine.tokens import MAX_TOKEN_ID, flaw_of
from rl_agent.rollout.comparison import is_cut, longest_response
from rl_agent.rollout.resample import is_comparable
from rl_agent.rollout.trajectories.images import digest_of
from rl_agent.types import Compaction, EpisodeKey, Step, Trajectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One token sequence; the three arrays have its length, and its first token is context."""

    token_ids: NDArray[np.int32]
    is_response: NDArray[np.bool_]
    behaviour: NDArray[np.float32]
    """The engine's logprob of each response token; 0 elsewhere."""
    images: tuple[str, ...] = ()
    """Files of its images, in the order of their placeholders."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Versions:
    """The oldest and the newest weight version that sampled a token of an episode."""

    oldest: int
    newest: int


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One finished episode."""

    key: str
    segments: tuple[Segment, ...]
    reward: float
    versions: Versions
    longest_response: int = 0
    """Tokens of the longest of its turns."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named rewards, not weighted."""
    is_cut: bool = False
    """A response of it ended where its tokens did."""

    @property
    def response_tokens(self) -> int:
        return sum(int(segment.is_response.sum()) for segment in self.segments)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The episodes of one group that have a reward; the others cannot be compared with them."""

    key: str
    samples: tuple[TrainingSample, ...]
    chosen: frozenset[str] | None = None
    """Keys of the samples that a step has; None: all. Their advantages need the others as well."""
    masked: frozenset[str] = frozenset()
    """Keys of the samples that count among the others and are not trained on."""
    flaw: str = ""
    """The impossible value in its stored data, if any; it has no samples then."""

    def is_trained(self, sample: TrainingSample) -> bool:
        """Return whether a step trains on this sample of the group."""
        return (self.chosen is None or sample.key in self.chosen) and sample.key not in self.masked

    @property
    def of_step(self) -> tuple[TrainingSample, ...]:
        """Masked ones included."""
        return tuple(s for s in self.samples if self.chosen is None or s.key in self.chosen)

    @property
    def trained(self) -> tuple[TrainingSample, ...]:
        return tuple(sample for sample in self.samples if self.is_trained(sample))

    @property
    def largest_token(self) -> int:
        """The largest of all token ids, prompts included; -1 without any."""
        segments = (segment for sample in self.samples for segment in sample.segments)
        return max((int(segment.token_ids.max(initial=-1)) for segment in segments), default=-1)


class GroupSource(Protocol):
    """A source of finished groups; rank 0 alone asks it."""

    def take(self, most: int) -> list[Group] | None:
        """Take up to `most` groups that have arrived, after a short wait none; None: there are no more."""


def make_group(trajectories: Iterable[Trajectory]) -> Group:
    """Make the group of these siblings, in the order of their attempts."""
    siblings = sorted(trajectories, key=lambda trajectory: trajectory.key.attempt)
    comparable = [trajectory for trajectory in siblings if is_comparable(trajectory)]
    key = group_key(siblings[0].iteration, siblings[0].key)
    for trajectory in comparable:
        if flaw := _flaw(trajectory):
            _log.warning("group %s is left out, for its episode %s holds %s", key, trajectory.key, flaw)
            return Group(key, (), flaw=flaw)
    return Group(key, tuple(_sample(trajectory) for trajectory in comparable))


def group_key(iteration: int, episode: EpisodeKey) -> str:
    """Return the key of this episode's group."""
    return f"{iteration}/{episode.task_id}:{episode.group}"


def _flaw(trajectory: Trajectory) -> str:
    """Name what of an episode cannot be, whatever the model; empty if nothing."""
    if trajectory.reward is not None and not math.isfinite(trajectory.reward):
        return f"the reward {trajectory.reward}"
    for drawn in _drawn(trajectory):
        prompt, response = drawn.prompt_token_ids, drawn.generation
        if prompt and not (min(prompt) >= 0 and max(prompt) < MAX_TOKEN_ID):
            return "a prompt with a token id that is none"
        if flaw := flaw_of(response.token_ids, response.logprobs, None):
            return flaw
    return ""


def _drawn(trajectory: Trajectory) -> Iterator[Step | Compaction]:
    """Iterate over what was sampled, in order."""
    for step in trajectory.steps:
        yield from step.seen.compactions
        yield step


def _sample(trajectory: Trajectory) -> TrainingSample:
    assert trajectory.reward is not None
    versions = Versions(trajectory.weight_version_min, trajectory.weight_version_max)
    return TrainingSample(
        str(trajectory.key),
        tuple(_segments(trajectory)),
        trajectory.reward,
        versions,
        rewards=trajectory.rewards,
        longest_response=longest_response(trajectory.steps),
        is_cut=is_cut(trajectory.steps),
    )


def _segments(trajectory: Trajectory) -> Iterator[Segment]:
    paths = [path for step in trajectory.steps for path in step.observation.images]
    files = {digest_of(path) or path: path for path in paths}
    steps: list[Step] = []
    for step in trajectory.steps:
        if step.context_reset and steps:
            yield _segment(steps, steps[-1].seen.images, files)
            steps = []
        for compaction in step.seen.compactions:
            yield _segment([compaction], compaction.images, files)
        steps.append(step)
    if steps:
        yield _segment(steps, steps[-1].seen.images, files)


def _segment(steps: Sequence[Step | Compaction], digests: Sequence[str], files: Mapping[str, str]) -> Segment:
    token_ids: list[int] = []
    is_response: list[bool] = []
    behaviour: list[float] = []
    for step in steps:
        response = step.generation
        token_ids += [*step.prompt_token_ids, *response.token_ids]
        is_response += [False] * len(step.prompt_token_ids) + [True] * len(response.token_ids)
        behaviour += [0.0] * len(step.prompt_token_ids) + list(response.logprobs)
    is_response[0] = False  # nothing comes before the first token, so it has no probability to train
    return Segment(
        np.array(token_ids, np.int32),
        np.array(is_response, np.bool_),
        np.array(behaviour, np.float32),
        tuple(files[digest] for digest in digests),
    )
