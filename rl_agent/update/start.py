"""What a training starts from: the served model and its optimizer, or the training that was interrupted.

    interrupted training of this very update ──► its last checkpoint
    else the served version ───────────────────► its weights, and its optimizer's state where that fits

An interrupted training goes on also on another number of nodes. What is left of the update stays the same
share of it, so that the steps which are done count as many as they would have been on the nodes of now.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from rl_agent.config import Plan
from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.update.inputs import DEEPSPEED_FILE, Prepared
from rl_agent.update.llamafactory.render import Setup, Start
from rl_agent.update.model import versions
from rl_agent.update.model.digest import FileDigest, first_difference
from rl_agent.update.model.weights import first_not_finite, read_tensors
from rl_agent.update.optimizer.checkpoints import find_checkpoint, global_step
from rl_agent.update.optimizer.optimizer import (
    OptimizerState,
    find_progress,
    misfit,
    needs_reshape,
    obstacle,
    restarts_schedule,
)
from rl_agent.update.optimizer.reshape import ReshapeFailed, reshape, settings_for_reshaped
from rl_agent.update.optimizer.resume import resume_folder

RESUME = "resume"
RESHAPE_LOG = "reshape.log"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A training that ended before its last step, and left a checkpoint."""

    progress: OptimizerState
    before: Prepared
    """What it had been prepared with."""

    @property
    def done_steps(self) -> int:
        return self.progress.global_step - self.before.first_step


def same_update(before: Prepared | None, model: str, datasets: dict[str, FileDigest]) -> Prepared | None:
    """An earlier preparation if it was of the present update: from `model`, on `datasets`."""
    is_same = before is not None and before.started_from == model and before.datasets == datasets
    return before if is_same else None


def is_finished(training: Path, before: Prepared) -> bool:
    """Whether a training came to its last step; what it left was not published, or it would be served."""
    checkpoint = find_checkpoint(training)
    return (
        checkpoint is not None
        and global_step(checkpoint) == before.first_step + before.new_steps
        and _is_finite(checkpoint)
    )


def find_interrupted(paths: RunPaths, iteration: int, before: Prepared) -> Interrupted | None:
    """What a training that was prepared so left to go on with; None if it left nothing, or is at its end."""
    # A training that was resumed and saved nothing itself leaves what it resumed from.
    for folder in (find_checkpoint(paths.training_dir(iteration)), paths.update_dir(iteration) / RESUME):
        progress = find_progress(folder) if folder is not None else None
        if progress is not None:
            found = Interrupted(progress, before)
            is_unfinished = 0 < found.done_steps < before.new_steps
            return found if is_unfinished and _is_finite(progress.folder) else None
    return None


def _is_finite(folder: Path) -> bool:
    return first_not_finite(read_tensors(folder)) is None


def choose_start(
    plan: Plan,
    iteration: int,
    model: str,
    setup: Setup,
    new_steps: int,
    interrupted: Interrupted | None,
) -> Start:
    """Decide what the training of `model` starts from; write the folder that Trainer resumes from, if any."""
    folder = plan.paths.update_dir(iteration)
    weights = _weights(plan, model)
    if interrupted is not None:
        try:
            return _go_on(plan, folder, weights, setup, new_steps, interrupted)
        except _Afresh as reason:
            _log.info("the interrupted training begins again: %s", reason)
    try:
        return _continue(plan, folder, weights, setup, new_steps)
    except _Afresh as reason:
        _log.info("the optimizer starts afresh: %s", reason)
    return weights


class _Afresh(Exception):
    """Why a state of the optimizer is not gone on with."""


def _damage(served: Path, only: str = "") -> str:
    """What of LLaMA-Factory's checkpoint in a version is not as it was published; empty if nothing is.

    `only`: how the names begin that are looked at.
    """
    record = versions.read_record(served)
    files = record.trainer_files if record is not None else {}
    wanted = {name: digest for name, digest in files.items() if name.startswith(only)}
    return first_difference(served / versions.TRAINER, wanted)


def _weights(plan: Plan, model: str) -> Start:
    """The served `model` without an optimizer's state. Raises StoreError for a damaged adapter."""
    served = versions.served_folder(plan.paths)
    base = versions.adapter_base(served) if served is not None else None
    if served is None or base is None or plan.config.llamafactory.finetuning_type != "lora":
        return Start(model)
    if reason := _damage(served, only="adapter_"):
        raise StoreError(f"{reason}; put back what was published, or `rollback` to the version before")
    return Start(str(base), adapter=served / versions.TRAINER)


def _continue(plan: Plan, folder: Path, weights: Start, setup: Setup, new_steps: int) -> Start:
    """The optimizer of the update that made the served model. Raises _Afresh."""
    trainer = plan.config.llamafactory
    served = versions.served_folder(plan.paths)
    progress = find_progress(served / versions.TRAINER) if served is not None else None
    if reason := obstacle(progress, trainer, setup):
        raise _Afresh(reason)
    assert progress is not None and served is not None
    if reason := _damage(served):
        raise _Afresh(reason)
    record = versions.read_record(served)
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


def _go_on(
    plan: Plan, folder: Path, weights: Start, setup: Setup, new_steps: int, interrupted: Interrupted
) -> Start:
    """The rest of an interrupted training. Raises _Afresh."""
    progress, before = interrupted.progress, interrupted.before
    if reason := misfit(progress, plan.config.llamafactory, setup):
        raise _Afresh(reason)
    done = round(interrupted.done_steps * new_steps / before.new_steps)
    if not 0 < done < new_steps:
        raise _Afresh("hardly a step was done, or is left")
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
    _log.info("the interrupted training goes on after step %d of %d", done, new_steps)
    return start


def _reshaped(plan: Plan, folder: Path, setup: Setup, progress: OptimizerState, start: Start) -> Start:
    """`start` with the optimizer's shards in a form that this number of processes loads. Raises _Afresh."""
    if not needs_reshape(progress, setup):
        return start
    assert setup.deepspeed is not None and start.resume_from is not None
    change = f"from {progress.deepspeed_ranks} to {setup.world_size}"
    _log.info("the number of processes changed %s: converting the optimizer's shards", change)
    try:
        reshape(start.resume_from, folder / RESHAPE_LOG, plan.config.llamafactory.timeout_s)
    except ReshapeFailed as error:
        raise _Afresh(f"its shards cannot be converted: {error}") from error
    return replace(start, deepspeed=settings_for_reshaped(setup.deepspeed, folder / DEEPSPEED_FILE))
