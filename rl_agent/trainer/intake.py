"""What becomes of every group that reaches the trainer: trained on once, kept for later, or turned away.

    offer ──► buffered ── next_group ──► taken ── step_done ──► consumed
       └── turned away (already consumed, too stale, equal rewards, …), counted by reason

A step that is given up puts its groups back (`step_abandoned`), in their order. The state is part of every
checkpoint, so that after a crash the same store of groups can be offered again from its beginning.
"""

from collections import Counter, deque
from collections.abc import Iterable

import torch

from rl_agent.trainer.admission import AdmissionRule, Verdict
from rl_agent.trainer.advantages import is_informative
from rl_agent.trainer.samples import Group

KNOWN = "known"
UNINFORMATIVE = "uninformative"
EMPTY = "empty"


class Intake:
    """Groups on their way into mini-batches; every rank keeps an equal one."""

    def __init__(self, rule: AdmissionRule, *, drop_uninformative: bool) -> None:
        self.consumed: set[str] = set()
        self.turned_away: Counter[str] = Counter()
        """Since the last `step_done`, by reason."""
        self._rule = rule
        self._drop_uninformative = drop_uninformative
        self._buffered: deque[Group] = deque()
        self._taken: list[Group] = []

    @property
    def buffered(self) -> tuple[Group, ...]:
        return tuple(self._buffered)

    def restore(self, consumed: Iterable[str], buffered: Iterable[Group]) -> None:
        """Begin from a checkpoint."""
        self.consumed = set(consumed)
        self._buffered = deque(buffered)

    def offer(self, groups: Iterable[Group]) -> None:
        """Take in what arrived; a group that is known already is turned away."""
        known = self.consumed | {group.key for group in (*self._buffered, *self._taken)}
        for group in groups:
            if group.key in known:
                self.turned_away[KNOWN] += 1
            else:
                known.add(group.key)
                self._buffered.append(group)

    def next_group(self, version: int) -> Group | None:
        """The next group that a step from `version` may use; None if more have to arrive."""
        while self._buffered:
            group = self._buffered.popleft()
            reason = self._refusal(group, version)
            if reason is None:
                self._taken.append(group)
                return group
            self.turned_away[reason] += 1
            self.consumed.add(group.key)
        return None

    def step_done(self) -> list[Group]:
        """The groups that the step trained on; they are never offered to another."""
        taken, self._taken = self._taken, []
        self.consumed.update(group.key for group in taken)
        self.turned_away.clear()
        return taken

    def forget(self) -> None:
        """No group that was consumed will be offered again: their iteration is over."""
        self.consumed.clear()

    def step_abandoned(self) -> None:
        """Keep the groups of a step that made no update for the next one."""
        self._buffered.extendleft(reversed(self._taken))
        self._taken = []

    def _refusal(self, group: Group, version: int) -> str | None:
        if not any(sample.response_tokens for sample in group.samples):
            return EMPTY
        verdict = self._rule.judge((sample.versions for sample in group.samples), version)
        if verdict is not Verdict.ADMITTED:
            return verdict.value
        rewards = torch.tensor([sample.reward for sample in group.samples], dtype=torch.float64)
        if self._drop_uninformative and not is_informative(rewards):
            return UNINFORMATIVE
        return None
