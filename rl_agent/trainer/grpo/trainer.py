"""Runs the loop of a trainer: groups arrive, a mini-batch becomes an optimizer step, versions follow.

    source ─(rank 0)─► all ranks ─► Intake ─► UpdateStep.add* ─► finish ─► clip ─► AdamW ─► checkpoint
                                       ▲              one group at a time              │
                                       └────────────── the next step ◄─────────────────┘

Every rank runs this same code on the same groups in the same order, so all ranks decide alike; only rank 0
asks the source and writes metrics. `stop` (a preemption notice) takes effect at the next group: the step that
is under way is given up, its groups are kept, and what was reached is saved.

On a recorded run a version is one step. Along with a live one it is an iteration, whose groups are divided
among its steps; where some are rejected the last step is short, or there are fewer.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from rl_agent.monitor import metrics
from rl_agent.monitor.flops import ModelShape
from rl_agent.trainer.grpo.checkpoint.checkpoint import Checkpoints
from rl_agent.trainer.grpo.checkpoint.progress import TrainerProgress
from rl_agent.trainer.grpo.data.group_codec import decode, encode
from rl_agent.trainer.grpo.data.intake import Intake
from rl_agent.trainer.grpo.data.order import ArrivalOrder, StepOrder
from rl_agent.trainer.grpo.data.samples import Group, GroupSource
from rl_agent.trainer.grpo.data.staleness import AdmissionRule, Lineage, TokenAges
from rl_agent.trainer.grpo.gpu_sharing.window import LearntWindow
from rl_agent.trainer.grpo.model.parallel import Ranks, computing_dtype, release_memory
from rl_agent.trainer.grpo.model.policy import PolicyModel, Scorer
from rl_agent.trainer.grpo.settings import TrainerSettings
from rl_agent.trainer.grpo.step.first_step import compare_with_engine, is_on_policy
from rl_agent.trainer.grpo.step.meter import Meter, StepReport
from rl_agent.trainer.grpo.step.optimizer import AdamW, clip_gradients, learning_rate
from rl_agent.trainer.grpo.step.start_weights import StartWeights
from rl_agent.trainer.grpo.step.step_metrics import (
    OF_EVERY_TRAINER,
    STEP,
    IterationMetrics,
    Speedometer,
    log_line,
)
from rl_agent.trainer.grpo.step.update_step import UpdateStep

_log = logging.getLogger(__name__)
_PREFIX_OF = dict.fromkeys(OF_EVERY_TRAINER, STEP)


class Trainer:
    """Trains, alike on every rank: `resume`, then `train_iteration` for each, then `close`."""

    def __init__(
        self,
        settings: TrainerSettings,
        ranks: Ranks,
        policy: PolicyModel,
        reference: Scorer | None,
        *,
        meter: Meter | None = None,
    ) -> None:
        """Prepare the first step; `meter` counts the money on rank 0, None counts none."""
        self.is_stop_requested = False
        """This rank; it ends with the others (`is_stopping`)."""
        self.is_stopping = False
        """All ranks, from the same group on."""
        self.check_place: Callable[[], None] = lambda: None
        """Called before each checkpoint; it raises where a later trainer has taken this one's place."""
        self.version = settings.first_version
        """The version of the weights that the next step starts from."""
        self.iteration = 0
        """The last one that was trained on to its end; 0: none."""
        self.served = ""
        """Name of the model that this training began with or has put at `model.pt` last."""
        self.windows: Mapping[int, LearntWindow] = {}
        """The windows that checkpoints keep; whoever learns about windows sets them."""
        self._settings = settings
        self._ranks = ranks
        self._policy = policy
        self._reference = reference
        self._run_id = settings.stream.run_id if settings.stream is not None else ""
        self._lends_devices = settings.stream is not None and settings.stream.sharing is not None
        self._arrival = ArrivalOrder(settings.groups, settings.mini_batches)
        self._lineage = Lineage(settings.stream.published if settings.stream is not None else {})
        self._rule = AdmissionRule(
            settings.batch.max_staleness, settings.batch.allow_mixed_versions, self._lineage
        )
        self._intake = Intake(
            self._rule,
            self._arrival,
            settings.loss,
            vocab_size=policy.vocabulary,
            image_token=policy.image_token,
        )
        self._optimizer = AdamW(policy, settings.optimizer, offload=settings.parallel.keeps_moments_in_host)
        self.start = StartWeights(policy)
        """The weights that the iteration began with, if its later steps want them."""
        self._ages = TokenAges(self._rule)
        self._checkpoints = Checkpoints(settings, self._optimizer, self.start, ranks)
        self._saved = (0, 0, self.version)
        """Steps, iterations and version in the newest checkpoint."""
        self._waiting_s = 0.0
        self._meter = meter
        self._speedometer = Speedometer(
            ModelShape.of(policy.config),
            Speedometer.passes_of(settings.loss),
            ranks.world_size,
            ranks.peak_flops_per_s(settings.peak_tflops),
            is_frozen=settings.lora.rank is not None,
        )
        self._of_iteration = IterationMetrics()
        self._is_compared = settings.stream is None or settings.loss.temperature != 1
        """The engine's logprobs were compared with this model's, or are of another distribution."""

    def stop(self) -> None:
        """End at the next group, with a checkpoint; safe to call from a signal handler."""
        self.is_stop_requested = True

    def agree_to_stop(self) -> bool:
        """Return whether any rank was told to stop; called by all ranks alike."""
        self.is_stopping = self._ranks.any_of_world(self.is_stop_requested)
        return self.is_stopping

    def close(self) -> None:
        self._checkpoints.close()

    @property
    def steps(self) -> int:
        """Optimizer steps made in all, those skipped included."""
        return self._optimizer.steps

    @property
    def is_catching_up(self) -> bool:
        """Return whether engines know of later iterations, from before this trainer was set back."""
        return self.iteration < self._lineage.newest_iteration

    @property
    def is_within_iteration(self) -> bool:
        """Return whether the weights have moved since they were those of `version`."""
        return self._intake.steps > 0

    def resume(self, start: Path | None = None, *, after_iteration: int = 0) -> None:
        """Go on from the newest checkpoint of this trainer, else from the folder `start`, else begin.

        Iterations up to `after_iteration` are not trained on, whatever was reached.
        """
        progress = self._checkpoints.load(start, served=self.served)
        if progress is not None:
            if progress.run_id == self._run_id:  # another one samples its iterations anew
                self._intake.restore(progress.consumed, progress.buffered, progress.steps_of_iteration)
                if progress.steps_of_iteration and self._ranks.rank == 0:
                    recorded = metrics.read(self._settings.metrics)
                    self._of_iteration.recall(recorded, iteration=progress.iteration + 1, last=progress.steps)
            else:
                self.start.release()
            self.version, self.iteration = progress.version, progress.iteration
            if progress.run_id != self._run_id:  # a checkpoint before a damaged one is older than the engines
                self.version = max(self.version, self._settings.first_version)
            self.windows = progress.windows
            if progress.steps_of_iteration:  # the weights moved since engines got this version
                self._is_compared = True
            self._ages.restore(progress.updates_after)
            self._saved = (progress.steps, progress.iteration, progress.version)
            self._log_once(f"going on after step {progress.steps}")
        self.iteration = max(self.iteration, after_iteration)
        self._lineage.note(self.version, self.iteration)
        if not self._intake.steps:
            self._ages.note(self.iteration, self._optimizer.updates)

    def train_iteration(
        self,
        iteration: int,
        source: GroupSource,
        *,
        next_version: int,
        order: StepOrder | None = None,
    ) -> bool:
        """Train on all groups of an iteration, which makes the next version; False if told to stop before.

        A new version is at least `next_version`. Without an `order` a step takes groups as they arrive. The
        checkpoint after the last step is the caller's, once the version is published (`save_at_times`).
        """
        self._intake.begin(order or self._arrival)
        while self._step(source, iteration):
            if self._intake.steps < self._settings.mini_batches:
                self.save_at_times()
        if self.is_stopping:
            self.save()
            return False
        # Until what was announced is reached again, the known numbers, which are announced no more.
        version = self._lineage.version_of(iteration) if iteration < self._lineage.newest_iteration else None
        self.iteration = iteration
        self.set_version(max(self.version + 1, next_version) if version is None else version)
        self._intake.forget()
        self.start.release()
        self._ages.note(iteration, self._optimizer.updates)
        return True

    def set_version(self, version: int) -> None:
        """Give the weights another number from now on."""
        self.version = version
        self._lineage.note(version, self.iteration)

    def iteration_numbers(self) -> dict[str, float]:
        """Return the metrics of the last iteration's steps, also those of a start before this one."""
        numbers, self._of_iteration = self._of_iteration.numbers(), IterationMetrics()
        return numbers | {"total_steps": float(self.steps)}

    def save(self) -> None:
        """Make what was reached durable, unless it is. Raises what `check_place` does."""
        if self._saved == (self.steps, self.iteration, self.version):
            return
        self.check_place()
        intake = self._intake
        self._saved = (self.steps, self.iteration, self.version)
        self._checkpoints.save(
            TrainerProgress(
                steps=self.steps,
                updates=self._optimizer.updates,
                version=self.version,
                iteration=self.iteration,
                served=self.served,
                consumed=frozenset(intake.consumed),
                buffered=intake.buffered,
                steps_of_iteration=intake.steps,
                run_id=self._run_id,
                windows=self.windows,
                updates_after=self._ages.updates_after,
                has_start=self.start.is_kept,
            )
        )

    def after_save(self, work: Callable[[Path], None]) -> None:
        """Do `work` with the folder of the last save once that is on the disk, while training goes on."""
        folder = self._checkpoints.folder(self._saved[0])
        self._checkpoints.after_save(lambda: work(folder))

    def wait_saved(self) -> None:
        """Wait for the last save and what was to follow it. Raises what they raised."""
        self._checkpoints.wait()

    def save_at_times(self) -> None:
        """Save what was reached, if it is time for a checkpoint."""
        if self.steps % self._settings.checkpoint.every_steps == 0:
            self.save()

    def _step(self, source: GroupSource, iteration: int | None = None) -> bool:
        """Make one optimizer step; False, and nothing changed, if there will be no groups for it."""
        settings, intake = self._settings, self._intake
        started, self._waiting_s = time.monotonic(), 0.0
        updates = self._optimizer.updates
        self._policy.zero_grad(set_to_none=True)
        step = UpdateStep(
            self._policy, self._reference, self._ranks, settings.loss, settings.batch, self.start
        )
        groups: list[Group] = []
        while not intake.is_full and (group := self._next_group(source)) is not None:
            step.add([group])
            groups.append(group)
        if not intake.is_full and (not groups or self.is_stopping):
            intake.step_abandoned()
            return False
        numbers = step.finish()
        self._compare_with_engine(numbers, groups)
        computed = time.monotonic()
        numbers["learning_rate"] = learning_rate(settings.optimizer, self._optimizer.steps)
        numbers["is_skipped"] = float(not math.isfinite(numbers["grad_norm"]))
        if numbers["is_skipped"]:
            self._optimizer.skip()
        else:
            if iteration is not None:
                self._keep_start()
            clip_gradients(self._policy, numbers["grad_norm"], settings.optimizer.max_grad_norm)
            self._optimizer.update()
        ended = time.monotonic()
        numbers |= {f"rejected_groups/{reason}": n for reason, n in intake.rejected.items()}
        trained = intake.step_done()
        samples = [sample for group in trained for sample in group.trained]
        sampled_after = None if iteration is None else self.iteration
        numbers |= self._ages.numbers(samples, version=self.version, iteration=sampled_after, updates=updates)
        seconds = {
            "waiting": self._waiting_s,
            "gradient": computed - started - self._waiting_s,
            "update": ended - computed,
            "step": ended - started,
        }
        numbers |= {f"seconds/{part}": value for part, value in seconds.items()}
        numbers |= self._speedometer.numbers(
            trained, seconds, more_passes=step.more_passes, shared_prefixes=step.shared_prefixes
        )
        self._record(numbers, iteration)
        return True

    def _next_group(self, source: GroupSource) -> Group | None:
        """Take the next group of this step; None when the source has ended or the trainer is to stop."""
        while True:
            if self.agree_to_stop():
                return None
            group = self._intake.next_group(self.version)
            if group is not None:
                return group
            if self._lends_devices:
                release_memory()
            start = time.monotonic()
            arrived = source.take(self._arrival.size(0)) if self._ranks.rank == 0 else None
            content = self._ranks.bytes_of_first(None if arrived is None else encode(arrived))
            self._waiting_s += time.monotonic() - start
            if content is None:
                self._intake.end()
                return self._intake.next_group(self.version)
            self._intake.offer(decode(content))

    def _compare_with_engine(self, numbers: Mapping[str, float], groups: Sequence[Group]) -> None:
        """Compare logprobs once, on the first step from the weights that the engine sampled with."""
        if self._is_compared or self._intake.steps or not is_on_policy(groups, self.version):
            return
        self._is_compared = True
        is_half = computing_dtype(self._ranks, self._settings.parallel) == torch.bfloat16
        warning = compare_with_engine(numbers, self.version, is_half=is_half)
        if warning and self._ranks.rank == 0:
            _log.warning("%s", warning)

    def _keep_start(self) -> None:
        """Keep the weights of the iteration's beginning, if a later step of it will want them."""
        settings = self._settings
        is_wanted = settings.loss.proximal == "iteration" and self._intake.steps + 1 < settings.mini_batches
        if is_wanted and not self.start.is_kept:
            self.start.keep()

    def _record(self, numbers: dict[str, float], iteration: int | None) -> None:
        if self._meter is not None and self._ranks.rank == 0:
            numbers |= self._meter.read(numbers["total_tokens"], self._report(numbers, iteration))
        self._of_iteration.add(numbers)
        if self._ranks.rank != 0:
            return
        head: dict[str, float | str] = {"time": time.time(), "phase": "update", STEP: self.steps}
        if iteration is not None:
            head["iteration"] = iteration
        because = self._meter.wanted_reason if self._meter is not None else ""
        if because:
            head["engines_wanted_because"] = because
        line = {f"{_PREFIX_OF.get(name, 'trainer')}/{name}": value for name, value in numbers.items()}
        metrics.append(self._settings.metrics, head | line)
        self._log_once(log_line(self.steps, numbers) + (f", {because}" if because else ""))

    def _report(self, numbers: dict[str, float], iteration: int | None) -> StepReport | None:
        """Return what the pool is told of a step; nothing where no run goes along."""
        stream = self._settings.stream
        if stream is None or iteration is None:
            return None
        newest = iteration + self._settings.batch.max_staleness
        return StepReport(
            waited_s=numbers["seconds/waiting"],
            lasted_s=numbers["seconds/step"],
            steps_together=self._settings.mini_batches * (1 + self._settings.batch.max_staleness),
            is_last=stream.last_iteration is not None and newest >= stream.last_iteration,
        )

    def _log_once(self, line: str) -> None:
        if self._ranks.rank == 0:
            _log.info(line)
