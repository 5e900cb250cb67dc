"""What becomes of every group that reaches the trainer: trained on once, kept for later, or turned away.

    offer ──► buffered ── next_group ──► taken ── step_done ──► consumed
       └── turned away (already consumed, too stale, equal rewards, …), counted by reason

A step that is given up puts its groups back (`step_abandoned`), in their order. The state is part of every
checkpoint, so that after a crash the same store of groups can be offered again from its beginning.

Where an iteration is dealt (`begin`), a step takes those samples of each group that are its own, and the
group stays buffered until no later step has any.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace

import torch

from rl_agent.trainer.admission import AdmissionRule, Verdict
from rl_agent.trainer.advantages import is_informative
from rl_agent.trainer.order import Deal
from rl_agent.trainer.samples import Group

KNOWN = "known"
UNINFORMATIVE = "uninformative"
EMPTY = "empty"
NOT_DEALT = "not_dealt"


class Intake:
    """Groups on their way into mini-batches; every rank keeps an equal one."""

    def __init__(self, rule: AdmissionRule, *, groups_per_step: int, drop_uninformative: bool) -> None:
        self.consumed: set[str] = set()
        self.dealt_steps = 0
        """Steps of the deal that are done."""
        self.turned_away: Counter[str] = Counter()
        """Since the last `step_done`, by reason."""
        self._rule = rule
        self._groups_per_step = groups_per_step
        self._drop_uninformative = drop_uninformative
        self._buffered: deque[Group] = deque()
        self._taken: list[Group] = []
        self._deal: Deal | None = None
        self._seen: set[str] = set()
        """Buffered groups that this step of the deal has taken what is its own of."""
        self._is_over = False

    @property
    def buffered(self) -> tuple[Group, ...]:
        return tuple(self._buffered)

    @property
    def is_full(self) -> bool:
        """Whether the step has all that is its own."""
        if self._deal is None:
            return len(self._taken) == self._groups_per_step
        part = self._deal.part(self.dealt_steps)
        return bool(self._taken) and all(key in self._seen or key in self.consumed for key in part)

    def restore(self, consumed: Iterable[str], buffered: Iterable[Group], dealt_steps: int) -> None:
        """Begin from a checkpoint."""
        self.consumed = set(consumed)
        self.dealt_steps = dealt_steps
        self._buffered = deque(buffered)

    def begin(self, deal: Deal | None) -> None:
        """An iteration, or what is left of it; without a deal a step takes groups as they arrive."""
        self._deal = deal
        self._is_over = False

    def end(self) -> None:
        """No more groups will be offered."""
        self._is_over = True

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
        if self._deal is not None:
            return self._next_dealt(self._deal, version)
        while self._buffered:
            group = self._buffered.popleft()
            reason = self._refusal(group, version)
            if reason is None:
                self._taken.append(group)
                return group
            self.turned_away[reason] += 1
            self.consumed.add(group.key)
        return None

    def _next_dealt(self, deal: Deal, version: int) -> Group | None:
        while self.dealt_steps < deal.steps:
            part = deal.part(self.dealt_steps)
            for group in [group for group in self._buffered if group.key not in self._seen]:
                reason = self._refusal(group, version)
                if reason is None and not deal.holds(group.key):
                    reason = NOT_DEALT
                if reason is not None:
                    self.turned_away[reason] += 1
                    self._consume({group.key})
                    continue
                self._seen.add(group.key)
                if group.key in part:
                    self._taken.append(replace(group, chosen=part[group.key]))
                    return self._taken[-1]
            is_empty = not self._taken and (self._is_over or all(key in self.consumed for key in part))
            if not is_empty:
                return None
            self._next_step(deal)
        return None

    def step_done(self) -> list[Group]:
        """The groups that the step trained on; they are never offered to another."""
        taken, self._taken = self._taken, []
        if self._deal is None:
            self.consumed.update(group.key for group in taken)
        else:
            self._next_step(self._deal)
        self.turned_away.clear()
        return taken

    def _next_step(self, deal: Deal) -> None:
        self._consume({group.key for group in self._buffered if deal.is_through(group.key, self.dealt_steps)})
        self.dealt_steps += 1
        self._seen.clear()

    def _consume(self, keys: set[str]) -> None:
        self.consumed |= keys
        self._buffered = deque(group for group in self._buffered if group.key not in keys)

    def forget(self) -> None:
        """No group that was consumed will be offered again: their iteration is over."""
        self.consumed.clear()
        self.dealt_steps = 0

    def step_abandoned(self) -> None:
        """Keep the groups of a step that made no update for the next one."""
        if self._deal is None:
            self._buffered.extendleft(reversed(self._taken))
        self._taken = []
        self._seen.clear()

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
