"""Computes how old the tokens of a group are, and decides by it which groups a training step may use.

The steps of an iteration that begins with version v may train on tokens of versions that are at most
max_staleness iterations behind v. A rollout begins only once engines serve what allows that; whatever was
begun, a group that is too old (its engine missed an update, say) is refused with a reason. Where episodes may
not span versions, engines finish what they began, so that few are refused for it. With max_staleness = 0 all
groups of an iteration are sampled from the version that it begins with, as where rollout and training take
turns.

Ages are counted in iterations, of which each makes one version, and not by version numbers. Numbers have gaps
where a pool knew a later one; and a trainer that was killed after it published makes the iterations since its
checkpoint once more, the last of them under a new number: its old number and its new one stand for the same
iteration. A training that was set back on purpose has nothing to do with the versions that it had made since.

An iteration makes one update of the weights or many. A step that is not the first of its iteration starts
from weights that no engine has: what it trains on is of the newest version, and some updates old.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rl_agent.trainer.grpo.data.samples import TrainingSample, Versions


class Lineage:
    """The iteration that made each weight version of one trainer; every rank keeps an equal one."""

    def __init__(self, made_in: Mapping[int, int | None] | None = None) -> None:
        """Begin with the iteration of each announced version; None: it was given up."""
        self._made_in = dict(made_in or {})

    def note(self, version: int, iteration: int) -> None:
        self._made_in[version] = iteration

    @property
    def newest_iteration(self) -> int:
        """The last iteration whose version is known; 0: none."""
        return max((made_in for made_in in self._made_in.values() if made_in is not None), default=0)

    def version_of(self, iteration: int) -> int | None:
        """Return the newest version of an iteration; None if none is known."""
        return max((v for v, made_in in self._made_in.items() if made_in == iteration), default=None)

    def age(self, version: int, *, at: int) -> int | None:
        """Return by how many iterations it is behind the version `at`; None: it was given up."""
        made_in, now = self._iteration(version), self._iteration(at)
        return None if made_in is None or now is None else now - made_in

    def _iteration(self, version: int) -> int | None:
        """Return the iteration of a version; where nothing is known, each number counts as one iteration."""
        if version in self._made_in:
            return self._made_in[version]
        iterations = {v: made_in for v, made_in in self._made_in.items() if made_in is not None}
        if not iterations:
            return version
        nearest = max((v for v in iterations if v < version), default=min(iterations))
        return iterations[nearest] + version - nearest


class AdmissionVerdict(StrEnum):
    """The decision on a group that could be trained on."""

    ADMITTED = "admitted"
    TOO_STALE = "too_stale"
    MIXED_VERSIONS = "mixed_versions"
    """An episode spans several versions, and may not: its engine did not finish it in time, or died."""
    NOT_PUBLISHED = "not_published"
    """A version newer than the trainer's: the group is of a run that went further and was set back."""


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """Admits groups by the age of their tokens; `max_staleness` counts iterations."""

    max_staleness: int
    allow_mixed_versions: bool
    lineage: Lineage = field(default_factory=Lineage)

    def judge(self, episodes: Iterable[Versions], version: int) -> AdmissionVerdict:
        """Decide whether a step of the iteration that begins with `version` may use these episodes' group."""
        for episode in episodes:
            oldest, newest = self._ages(episode, version)
            if newest < 0:
                return AdmissionVerdict.NOT_PUBLISHED
            if oldest > self.max_staleness:
                return AdmissionVerdict.TOO_STALE
            if episode.oldest != episode.newest and not self.allow_mixed_versions:
                return AdmissionVerdict.MIXED_VERSIONS
        return AdmissionVerdict.ADMITTED

    def age(self, episode: Versions, version: int) -> int:
        """Return the age of the oldest token of an episode that a step from `version` may use."""
        return self._ages(episode, version)[0]

    def _ages(self, episode: Versions, version: int) -> tuple[int, int]:
        """Return the ages of its oldest and newest token; a version that was given up is older than any."""
        ages = [self.lineage.age(sampled, at=version) for sampled in (episode.oldest, episode.newest)]
        numbers = [self.max_staleness + 1 if age is None else age for age in ages]
        return max(numbers), min(numbers)


class TokenAges:
    """Counts how old the tokens are that one trainer trains on; part of its checkpoints."""

    def __init__(self, rule: AdmissionRule) -> None:
        self.updates_after = {0: 0}
        """Updates made in all by the end of an iteration, of those that samples may still be of."""
        self._rule = rule

    def restore(self, updates_after: Mapping[int, int]) -> None:
        self.updates_after = dict(updates_after)

    def note(self, iteration: int, updates: int) -> None:
        """Record the updates made by the end of an iteration, or by the start after it."""
        oldest = iteration - self._rule.max_staleness
        kept = {
            made_in: count for made_in, count in self.updates_after.items() if oldest <= made_in < iteration
        }
        self.updates_after = kept | {iteration: updates}

    def numbers(
        self, trained: Iterable[TrainingSample], *, version: int, iteration: int | None, updates: int
    ) -> dict[str, float]:
        """Return metrics of a step from `version`, the one of `iteration`, after so many updates.

        What is not known, as after a checkpoint of another release or without an `iteration`, is left out.
        """
        counts = Counter(self._rule.age(sample.versions, version) for sample in trained)
        numbers: dict[str, float] = {f"staleness/{age}": count for age, count in sorted(counts.items())}
        began = self.updates_after.get(iteration - max(counts)) if counts and iteration is not None else None
        if began is not None:
            numbers["updates_since_sampling"] = updates - began
        return numbers
