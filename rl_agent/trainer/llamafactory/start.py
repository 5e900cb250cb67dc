"""Decides what a training starts from: the served model and its optimizer, or an interrupted training.

    interrupted training of this very update ──► its last checkpoint
    else the served version ───────────────────► its weights, and its optimizer's state where that fits

An interrupted training can continue on another number of nodes. The finished share of the update stays the
same, and the number of finished steps is converted to the present number of nodes.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from rl_agent.config.plan import Plan
from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.served_model.digest import FileDigest, first_difference
from rl_agent.served_model.versions import Published, ServedVersion
from rl_agent.served_model.weights import first_not_finite, read_tensors
from rl_agent.trainer.llamafactory.inputs import DEEPSPEED_FILE, UpdateSummary
from rl_agent.trainer.llamafactory.optimizer.checkpoints import find_checkpoint, global_step
from rl_agent.trainer.llamafactory.optimizer.optimizer import (
    OptimizerState,
    find_progress,
    misfit,
    needs_reshape,
    obstacle,
    restarts_schedule,
)
from rl_agent.trainer.llamafactory.optimizer.reshape import ReshapeFailed, reshape, settings_for_reshaped
from rl_agent.trainer.llamafactory.optimizer.resume import resume_folder
from rl_agent.trainer.llamafactory.render import TrainingSetup, TrainingStart

RESUME = "resume"
RESHAPE_LOG = "reshape.log"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A training that ended before its last step and left a checkpoint."""

    progress: OptimizerState
    before: UpdateSummary
    """The inputs with which it was prepared."""

    @property
    def done_steps(self) -> int:
        return self.progress.global_step - self.before.first_step


def same_update(
    before: UpdateSummary | None, model: str, datasets: dict[str, FileDigest]
) -> UpdateSummary | None:
    """Return an earlier preparation if it was of the same update: from `model`, on `datasets`."""
    is_same = before is not None and before.started_from == model and before.datasets == datasets
    return before if is_same else None


def is_finished(training: Path, before: UpdateSummary) -> bool:
    """Return whether a training reached its last step with finite weights, and only has to be published."""
    checkpoint = find_checkpoint(training)
    return (
        checkpoint is not None
        and global_step(checkpoint) == before.first_step + before.new_steps
        and _is_finite(checkpoint)
    )


def find_interrupted(paths: RunPaths, iteration: int, before: UpdateSummary) -> Interrupted | None:
    """Find the checkpoint of an interrupted training; None if there is none, or it reached its end."""
    # A training that was resumed and saved nothing itself leaves what it resumed from.
    for folder in (find_checkpoint(paths.training_dir(iteration)), paths.update_dir(iteration) / RESUME):
        progress = find_progress(folder) if folder is not None else None
        if progress is not None:
            interrupted = Interrupted(progress, before)
            is_unfinished = 0 < interrupted.done_steps < before.new_steps
            return interrupted if is_unfinished and _is_finite(progress.folder) else None
    return None


def _is_finite(folder: Path) -> bool:
    return first_not_finite(read_tensors(folder)) is None


def choose_start(
    plan: Plan,
    iteration: int,
    model: ServedVersion,
    setup: TrainingSetup,
    new_steps: int,
    interrupted: Interrupted | None,
) -> TrainingStart:
    """Choose the start of a training of `model`; write the folder that Trainer resumes from, if any."""
    folder = plan.paths.update_dir(iteration)
    weights = _weights(plan, model)
    if interrupted is not None:
        try:
            return _resume(plan, folder, weights, setup, new_steps, interrupted)
        except _StateRefused as reason:
            _log.info("the interrupted training starts from its beginning: %s", reason)
    try:
        return _continue(plan, folder, model, weights, setup, new_steps)
    except _StateRefused as reason:
        _log.info("the optimizer starts fresh: %s", reason)
    return weights


class _StateRefused(Exception):
    """The reason why a state of the optimizer is not continued."""


def _damage(folder: Path, record: Published | None, only: str = "") -> str:
    """Describe the first changed file of LLaMA-Factory's checkpoint in a version; empty if none changed.

    `only` limits this to names with that prefix.
    """
    files = record.trainer_files if record is not None else {}
    digests = {name: digest for name, digest in files.items() if name.startswith(only)}
    return first_difference(folder / versions.TRAINER, digests)


def _weights(plan: Plan, model: ServedVersion) -> TrainingStart:
    """Start from the served model without its optimizer. Raises StoreError for a damaged adapter."""
    served = model.folder
    base = versions.adapter_base(served) if served is not None else None
    if served is None or base is None or plan.config.llamafactory.finetuning_type != "lora":
        return TrainingStart(model.path)
    if reason := _damage(served, model.record, only="adapter_"):
        raise StoreError(f"{reason}; restore the published files, or `rollback` to the previous version")
    return TrainingStart(str(base), adapter=served / versions.TRAINER)


def _continue(
    plan: Plan,
    folder: Path,
    model: ServedVersion,
    weights: TrainingStart,
    setup: TrainingSetup,
    new_steps: int,
) -> TrainingStart:
    """Continue the optimizer of the update that made the served model. Raises _StateRefused."""
    trainer, served, record = plan.config.llamafactory, model.folder, model.record
    progress = find_progress(served / versions.TRAINER) if served is not None else None
    if reason := obstacle(progress, trainer, setup):
        raise _StateRefused(reason)
    assert progress is not None and served is not None
    if reason := _damage(served, record):
        raise _StateRefused(reason)
    first_step = 0 if restarts_schedule(trainer) else progress.global_step
    resume_folder(
        progress,
        folder / RESUME,
        trainer,
        at=first_step,
        new_steps=new_steps,
        old_learning_rate=record.learning_rate if record is not None else trainer.learning_rate,
    )
    start = replace(
        weights,
        adapter=None,  # Trainer loads it from the folder
        resume_from=folder / RESUME,
        steps_before=record.update_steps if record is not None else progress.global_step,
        first_step=first_step,
        max_steps=first_step + new_steps,
    )
    return _reshaped(plan, folder, setup, progress, start)


def _resume(
    plan: Plan,
    folder: Path,
    weights: TrainingStart,
    setup: TrainingSetup,
    new_steps: int,
    interrupted: Interrupted,
) -> TrainingStart:
    """Continue an interrupted training. Raises _StateRefused."""
    progress, before = interrupted.progress, interrupted.before
    if reason := misfit(progress, plan.config.llamafactory, setup):
        raise _StateRefused(reason)
    done = round(interrupted.done_steps * new_steps / before.new_steps)
    if not 0 < done < new_steps:
        raise _StateRefused("no whole step was finished, or none is left")
    resume_folder(
        progress,
        folder / RESUME,
        plan.config.llamafactory,
        at=before.first_step + done,
        new_steps=new_steps,
        old_learning_rate=before.learning_rate,
    )
    start = replace(
        weights,
        adapter=None,
        resume_from=folder / RESUME,
        steps_before=before.steps_before,
        first_step=before.first_step,
        max_steps=before.first_step + new_steps,
    )
    start = _reshaped(plan, folder, setup, progress, start)
    _log.info("the interrupted training continues after step %d of %d", done, new_steps)
    return start


def _reshaped(
    plan: Plan, folder: Path, setup: TrainingSetup, progress: OptimizerState, start: TrainingStart
) -> TrainingStart:
    """Convert the optimizer's shards for the present number of processes if needed. Raises _StateRefused."""
    if not needs_reshape(progress, setup):
        return start
    assert setup.deepspeed is not None and start.resume_from is not None
    change = f"from {progress.deepspeed_ranks} to {setup.world_size}"
    _log.info("the number of processes changed %s: converting the optimizer's shards", change)
    try:
        reshape(start.resume_from, folder / RESHAPE_LOG, plan.config.llamafactory.timeout_s)
    except ReshapeFailed as error:
        raise _StateRefused(f"its shards cannot be converted: {error}") from error
    return replace(start, deepspeed=settings_for_reshaped(setup.deepspeed, folder / DEEPSPEED_FILE))
