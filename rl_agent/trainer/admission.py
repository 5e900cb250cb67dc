"""Which groups a training step may use: a pure function of weight versions.

A step that starts from version v and makes v + 1 may train on tokens of the versions v − max_staleness … v.
A rollout begins only once engines serve what allows that; whatever was begun, a group that is too old (its
engine missed an update, say) is turned away with a reason. With max_staleness = 0 all groups of step v are
begun and trained on at version v: synchronous training.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What becomes of a group that asks to be trained on."""

    ADMITTED = "admitted"
    TOO_STALE = "too_stale"
    MIXED_VERSIONS = "mixed_versions"
    """An episode spans several versions, and that is not allowed."""
    NOT_PUBLISHED = "not_published"
    """A version newer than the trainer's: the group is of a run that went further and was set back."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The oldest and the newest weight version that sampled a token of an episode."""

    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """`max_staleness` is in versions."""

    max_staleness: int
    allow_mixed_versions: bool

    def judge(self, episodes: Iterable[Versions], version: int) -> Verdict:
        """Whether a step that starts from `version` may use the group of these episodes."""
        for episode in episodes:
            if episode.newest > version:
                return Verdict.NOT_PUBLISHED
            if version - episode.oldest > self.max_staleness:
                return Verdict.TOO_STALE
            if episode.oldest != episode.newest and not self.allow_mixed_versions:
                return Verdict.MIXED_VERSIONS
        return Verdict.ADMITTED
