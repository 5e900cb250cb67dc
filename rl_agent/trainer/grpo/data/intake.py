"""Decides what becomes of every group that reaches the trainer: trained on once, kept, or rejected.

    offer ──► buffered ── next_group ──► taken ── step_done ──► consumed
       └── rejected (already consumed, too stale, without an advantage, …), counted by reason

Which step takes what of a group, the iteration's `StepOrder` says. A group stays buffered until no later step
has anything of it, so a step that is given up (`step_abandoned`) leaves all groups as they were. The state is
part of every checkpoint, so that after a crash the same store of groups can be offered again from its
beginning.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from rl_agent.config.sections.grpo import LossSettings
from rl_agent.rollout.comparison import Comparison
from rl_agent.trainer.grpo.data.images import placed_images
from rl_agent.trainer.grpo.data.order import StepOrder
from rl_agent.trainer.grpo.data.samples import Group
from rl_agent.trainer.grpo.data.staleness import AdmissionRule, AdmissionVerdict

KNOWN = "known"
UNINFORMATIVE = "uninformative"
EMPTY = "empty"
IMPOSSIBLE = "impossible_tokens"
MISPLACED_IMAGES = "misplaced_images"
"""A sequence has not as many places for images as images."""
NOT_DEALT = "not_dealt"


def with_masks(group: Group, comparison: Comparison) -> Group:
    """Mark the samples of a group that are not trained on."""
    masked = frozenset(sample.key for sample in group.samples if comparison.is_masked(sample))
    return replace(group, masked=masked) if masked else group


class Intake:
    """Groups on their way into mini-batches; every rank keeps an equal one."""

    def __init__(
        self,
        rule: AdmissionRule,
        order: StepOrder,
        loss: LossSettings,
        *,
        vocab_size: int | None = None,
        image_token: int | None = None,
    ) -> None:
        """Begin without groups; `vocab_size` is the number of rows of the model's embedding, if known.

        `image_token` stands for a piece of an image; None for a text model.
        """
        self.consumed: set[str] = set()
        self.steps = 0
        """The finished steps of the iteration, those included that nothing came for."""
        self.rejected: Counter[str] = Counter()
        """The groups rejected since the last `step_done`, by reason."""
        self._rule = rule
        self._order = order
        self._comparison = Comparison(loss)
        self._drop_uninformative = loss.drop_uninformative
        self._vocab_size = vocab_size
        self._image_token = image_token
        self._buffered: dict[str, Group] = {}
        self._taken: list[Group] = []
        self._looked_at: set[str] = set()
        """Buffered groups of which this step has taken what is its own."""
        self._is_over = False

    @property
    def buffered(self) -> tuple[Group, ...]:
        return tuple(self._buffered.values())

    @property
    def is_full(self) -> bool:
        """Return whether the step has all that is its own."""
        return self._order.is_complete(self.steps, len(self._taken), self._settled)

    def restore(self, consumed: Iterable[str], buffered: Iterable[Group], steps: int) -> None:
        """Restore the state of a checkpoint."""
        self.consumed = set(consumed)
        self.steps = steps
        self._buffered = {group.key: group for group in buffered}

    def begin(self, order: StepOrder) -> None:
        """Begin an iteration, or what is left of it."""
        self._order = order
        self._is_over = False

    def end(self) -> None:
        """Record that no more groups will be offered."""
        self._is_over = True

    def offer(self, groups: Iterable[Group]) -> None:
        """Take in what arrived; a group that is known already is rejected."""
        for group in groups:
            if group.key in self.consumed or group.key in self._buffered:
                self.rejected[KNOWN] += 1
            else:
                self._buffered[group.key] = group

    def next_group(self, version: int) -> Group | None:
        """Take the next group that a step from `version` may use; None if more have to arrive."""
        while True:
            for key in [key for key in self._buffered if key not in self._looked_at]:
                group = with_masks(self._buffered[key], self._comparison)
                reason = self._refusal(group, version)
                if reason is not None:
                    self.rejected[reason] += 1
                    self._consume([key])
                    continue
                self._looked_at.add(key)
                share = self._order.share(group, self.steps)
                if share is not None:
                    self._taken.append(share)
                    return share
            if self._taken or not self._order.is_void(self.steps, self._settled, is_over=self._is_over):
                return None
            self._next_step()

    def step_done(self) -> list[Group]:
        """End the step and return what it trained on, which no other step is offered."""
        taken, self._taken = self._taken, []
        self._next_step()
        self.rejected.clear()
        return taken

    def step_abandoned(self) -> None:
        """Keep the groups of a step that made no update for the next one."""
        self._taken = []
        self._looked_at.clear()

    def forget(self) -> None:
        """Forget the consumed groups: their iteration is over, so none is offered again."""
        self.consumed.clear()
        self.steps = 0

    @property
    def _settled(self) -> set[str]:
        """Groups that this step need not wait for."""
        return self.consumed | self._looked_at

    def _next_step(self) -> None:
        self._consume([key for key in self._looked_at if self._order.is_last_step(key, self.steps)])
        self._looked_at.clear()
        self.steps += 1

    def _consume(self, keys: Iterable[str]) -> None:
        for key in keys:
            del self._buffered[key]
            self.consumed.add(key)

    def _refusal(self, group: Group, version: int) -> str | None:
        if group.flaw or (self._vocab_size and group.largest_token >= self._vocab_size):
            return IMPOSSIBLE
        segments = (segment for sample in group.samples for segment in sample.segments)
        if any(placed_images(segment, self._image_token) is None for segment in segments):
            return MISPLACED_IMAGES
        if not any(sample.response_tokens for sample in group.trained):
            return EMPTY
        verdict = self._rule.judge((sample.versions for sample in group.samples), version)
        if verdict is not AdmissionVerdict.ADMITTED:
            return verdict.value
        if self._drop_uninformative and not self._comparison.is_informative(group.samples):
            return UNINFORMATIVE
        return None if self._order.contains(group.key) else NOT_DEALT
