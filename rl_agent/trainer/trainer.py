"""The loop of a trainer: groups arrive, a mini-batch becomes one optimizer step, a version follows another.

    source ─(rank 0)─► all ranks ─► Intake ─► UpdateStep.add* ─► finish ─► clip ─► AdamW ─► checkpoint
                                       ▲              one group at a time              │
                                       └────────────── the next step ◄─────────────────┘

Every rank runs this same code on the same groups in the same order, so all ranks decide alike; only rank 0
asks the source and writes metrics. `stop` (a preemption notice) takes effect at the next group: the step that
is under way is given up, its groups are kept, and what was reached is saved.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import torch

from rl_agent.monitor import metrics
from rl_agent.trainer.admission import AdmissionRule
from rl_agent.trainer.checkpoint import Checkpoints, Progress
from rl_agent.trainer.group_codec import decode, encode
from rl_agent.trainer.intake import Intake
from rl_agent.trainer.optimizer import AdamW, clip_gradients, learning_rate
from rl_agent.trainer.parallel import Ranks
from rl_agent.trainer.policy import Policy
from rl_agent.trainer.samples import Group
from rl_agent.trainer.settings import TrainerSettings
from rl_agent.trainer.update_step import UpdateStep

_log = logging.getLogger(__name__)


class GroupSource(Protocol):
    """Where finished groups come from; asked by rank 0 alone."""

    def take(self, most: int) -> list[Group]:
        """Groups that have arrived, at least one and up to `most`; waits for one. None are left: empty."""


class Trainer:
    """Made alike on every rank; `run` trains until the settings, the source or `stop` end it."""

    def __init__(
        self,
        settings: TrainerSettings,
        ranks: Ranks,
        policy: Policy,
        reference: Policy | None,
        source: GroupSource,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_stopping = False
        self._settings = settings
        self._ranks = ranks
        self._policy = policy
        self._reference = reference
        self._source = source
        self._clock = clock
        batch = settings.batch
        rule = AdmissionRule(batch.max_staleness, batch.allow_mixed_versions)
        self._intake = Intake(rule, drop_uninformative=settings.loss.drop_uninformative)
        self._optimizer = AdamW(policy, settings.optimizer, offload=settings.parallel.offload_optimizer)
        self._checkpoints = Checkpoints(
            settings.output / "checkpoints", policy, self._optimizer, ranks, settings.checkpoint
        )
        self._saved_steps = 0
        self._waiting_s = 0.0

    def stop(self) -> None:
        """End at the next group, with a checkpoint; safe to call from a signal handler."""
        self.is_stopping = True

    def run(self) -> int:
        """Go on from the newest checkpoint, or begin; returns the number of steps made in all."""
        try:
            self._resume()
            while self._optimizer.steps < self._settings.steps and self._step():
                if self._optimizer.steps % self._settings.checkpoint.every_steps == 0:
                    self._save()
            if self._saved_steps < self._optimizer.steps:
                self._save()
        finally:
            self._checkpoints.close()
        return self._optimizer.steps

    def _resume(self) -> None:
        progress = self._checkpoints.load()
        if progress is not None:
            self._intake.restore(progress.consumed, progress.buffered)
            self._saved_steps = progress.steps
            self._say(f"going on after step {progress.steps}")

    def _save(self) -> None:
        intake = self._intake
        steps = self._optimizer.steps
        self._checkpoints.save(Progress(steps, frozenset(intake.consumed), intake.buffered))
        self._saved_steps = steps

    def _step(self) -> bool:
        """One optimizer step; False, and nothing changed, if there will be no groups for it."""
        settings, intake = self._settings, self._intake
        started, self._waiting_s = self._clock(), 0.0
        self._policy.zero_grad(set_to_none=True)
        step = UpdateStep(self._policy, self._reference, self._ranks, settings.loss, settings.batch)
        for _ in range(settings.batch.groups_per_step):
            group = self._next_group()
            if group is None:
                intake.step_abandoned()
                return False
            step.add([group])
        numbers = step.finish()
        computed = self._clock()
        numbers["learning_rate"] = learning_rate(settings.optimizer, self._optimizer.steps)
        numbers["is_skipped"] = float(not math.isfinite(numbers["grad_norm"]))
        if numbers["is_skipped"]:
            self._optimizer.steps += 1  # a gradient that overflowed would spoil the weights for good
        else:
            clip_gradients(self._policy, numbers["grad_norm"], settings.optimizer.max_grad_norm)
            self._optimizer.update()
        ended = self._clock()
        numbers |= {f"turned_away/{reason}": n for reason, n in intake.turned_away.items()}
        numbers |= self._staleness(intake.step_done())
        numbers |= {
            "seconds/waiting": self._waiting_s,
            "seconds/gradient": computed - started - self._waiting_s,
            "seconds/update": ended - computed,
            "seconds/step": ended - started,
            "tokens_per_s": numbers["total_tokens"] / max(ended - started, 1e-9),
        }
        self._record(numbers)
        return True

    @property
    def _version(self) -> int:
        return self._settings.first_version + self._optimizer.steps

    def _next_group(self) -> Group | None:
        """The next group of this step; None when the source has ended or the trainer is to stop."""
        while True:
            if self._ranks.any_of_world(self.is_stopping):
                self.is_stopping = True
                return None
            group = self._intake.next_group(self._version)
            if group is not None:
                return group
            asked = self._clock()
            arrived = self._source.take(self._settings.batch.groups_per_step) if self._ranks.rank == 0 else []
            content = self._ranks.bytes_of_first(encode(arrived) if arrived else None)
            self._waiting_s += self._clock() - asked
            if content is None:
                return None
            self._intake.offer(decode(content))

    def _staleness(self, groups: list[Group]) -> dict[str, float]:
        """How many episodes were how many versions old; called when the version has moved on by one."""
        oldest = (sample.versions.oldest for group in groups for sample in group.samples)
        counts = Counter(self._version - 1 - version for version in oldest)
        return {f"staleness/{age}": count for age, count in sorted(counts.items())}

    def _record(self, numbers: dict[str, float]) -> None:
        if self._ranks.rank != 0:
            return
        head = {"time": time.time(), "phase": "update", "update_step": self._optimizer.steps}
        line = head | {f"trainer/{name}": value for name, value in numbers.items()}
        metrics.append(self._settings.output / "metrics.jsonl", line)
        self._say(
            f"step {self._optimizer.steps}/{self._settings.steps}: reward {numbers['reward']:.3f}, "
            f"entropy {numbers['entropy']:.3f}, {numbers['total_tokens']:,.0f} tokens in "
            f"{numbers['seconds/step']:.1f} s (waiting {numbers['seconds/waiting']:.1f}, "
            f"gradient {numbers['seconds/gradient']:.1f}, update {numbers['seconds/update']:.1f}), "
            f"{numbers['tokens_per_s']:,.0f} tokens/s"
        )

    def _say(self, line: str) -> None:
        if self._ranks.rank == 0:
            _log.info(line)


def seed_everything(seed: int, ranks: Ranks) -> None:
    """Equal seeds would make the ranks draw equal numbers."""
    torch.manual_seed(seed + ranks.rank)
