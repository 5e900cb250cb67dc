"""Which groups a training step may use, by the weight versions that sampled them.

The steps of an iteration that begins with version v may train on tokens of versions that are at most
max_staleness iterations behind v. A rollout begins only once engines serve what allows that; whatever was
begun, a group that is too old (its engine missed an update, say) is turned away with a reason. Where episodes
may not span versions, engines finish what they began (`pool.finishing`), so that few are turned away for it.
With max_staleness = 0 all groups of an iteration are sampled from the version that it begins with, as where
rollout and training take turns; for its later steps they are as old as the updates made since (`ages`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from rl_agent.trainer.data.lineage import Lineage


class AdmissionVerdict(StrEnum):
    """What becomes of a group that asks to be trained on."""

    ADMITTED = "admitted"
    TOO_STALE = "too_stale"
    MIXED_VERSIONS = "mixed_versions"
    """An episode spans several versions, and may not: its engine did not finish it in time, or died."""
    NOT_PUBLISHED = "not_published"
    """A version newer than the trainer's: the group is of a run that went further and was set back."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The oldest and the newest weight version that sampled a token of an episode."""

    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """Admits groups by the age of their tokens; `max_staleness` counts iterations."""

    max_staleness: int
    allow_mixed_versions: bool
    lineage: Lineage = field(default_factory=Lineage)

    def judge(self, episodes: Iterable[Versions], version: int) -> AdmissionVerdict:
        """Whether a step of the iteration that begins with `version` may use the group of these episodes."""
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
        """The age of the oldest token of an episode that a step from `version` may use."""
        return self._ages(episode, version)[0]

    def _ages(self, episode: Versions, version: int) -> tuple[int, int]:
        """Of its oldest and its newest token; one of a version that was given up is older than any."""
        ages = [self.lineage.age(sampled, at=version) for sampled in (episode.oldest, episode.newest)]
        known = [self.max_staleness + 1 if age is None else age for age in ages]
        return max(known), min(known)
