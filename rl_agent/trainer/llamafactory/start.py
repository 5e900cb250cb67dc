"""Decides what a training starts from: the served model and its optimizer, or an interrupted training.

    interrupted training of this very update ──► its last checkpoint
    else the served version ───────────────────► its weights, and its optimizer's state where that fits

An interrupted training can continue on another number of nodes. The finished share of the update stays the
same, and the number of finished steps is converted to the present number of nodes.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rl_agent.config.plan import Plan
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.served_model.digest import FileDigest, first_difference
from rl_agent.served_model.verify import verify_model
from rl_agent.trainer.llamafactory.inputs import UpdateSummary
from rl_agent.trainer.llamafactory.model import ServedVersion
from rl_agent.trainer.llamafactory.optimizer.checkpoints import (
    OptimizerState,
    find_checkpoint,
    find_progress,
    is_finite,
)
from rl_agent.trainer.llamafactory.optimizer.optimizer import StateRefused, misfit, restarts_schedule
from rl_agent.trainer.llamafactory.optimizer.reshape import reshape_if_needed
from rl_agent.trainer.llamafactory.optimizer.resume import resume_folder
from rl_agent.trainer.llamafactory.render import TrainingSetup, TrainingStart

RESUME = "resume"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Continuation:
    """A saved state of the optimizer, and the step at which an update continues it."""

    state: OptimizerState
    learning_rate: float
    """The rate with which it was saved."""
    steps_before: int
    first_step: int
    done_steps: int = 0
    """Finished steps of this update, converted to the present number of nodes."""
    digests: Mapping[str, FileDigest] = field(default_factory=dict)
    """The files of the state as they were published; none of an interrupted training."""


def choose_start(
    plan: Plan,
    iteration: int,
    model: ServedVersion,
    setup: TrainingSetup,
    new_steps: int,
    before: UpdateSummary | None,
) -> TrainingStart:
    """Choose the start of a training of `model`; write the folder that Trainer resumes from, if any.

    `before` is an earlier preparation of this very update. Raises StoreError for a damaged model.
    """
    trainer = plan.config.llamafactory
    weights = _weights(trainer, model)
    try:
        if (interrupted := _find_interrupted(plan.paths, iteration, before, new_steps)) is not None:
            return _continue(plan, iteration, weights, setup, new_steps, interrupted)
    except StateRefused as reason:
        _log.info("the interrupted training starts from its beginning: %s", reason)
    try:
        return _continue(plan, iteration, weights, setup, new_steps, _find_served(trainer, model))
    except StateRefused as reason:
        _log.info("the optimizer starts fresh: %s", reason)
    return weights


def _weights(trainer: TrainerConfig, model: ServedVersion) -> TrainingStart:
    """Start from the served model without its optimizer. Raises StoreError for a damaged adapter or base."""
    served = model.folder
    base = versions.adapter_base(served) if served is not None else None
    if served is None or base is None or trainer.finetuning_type != "lora":
        return TrainingStart(model.path, model.config)
    adapter = {name: digest for name, digest in model.trainer_files.items() if name.startswith("adapter_")}
    if reason := first_difference(served / versions.TRAINER, adapter):
        raise StoreError(f"{reason}; {versions.RESTORE}")
    verify_model(base)
    return TrainingStart(str(base), model.config, adapter=served / versions.TRAINER)


def _find_interrupted(
    paths: RunPaths, iteration: int, before: UpdateSummary | None, new_steps: int
) -> Continuation | None:
    """Find the checkpoint of an interrupted training; None if there is none, or it reached its end.

    Raises StateRefused if it is not in the middle of the update on the present number of nodes.
    """
    if before is None:
        return None
    # A training that was resumed and saved nothing itself leaves what it resumed from.
    folders = (find_checkpoint(paths.training_dir(iteration)), paths.update_dir(iteration) / RESUME)
    state = next((state for folder in folders if folder and (state := find_progress(folder))), None)
    finished = state.global_step - before.first_step if state is not None else 0
    if state is None or not 0 < finished < before.new_steps or not is_finite(state.folder):
        return None
    done = round(finished * new_steps / before.new_steps)
    if not 0 < done < new_steps:
        raise StateRefused("no whole step was finished, or none is left")
    return Continuation(state, before.learning_rate, before.steps_before, before.first_step, done)


def _find_served(trainer: TrainerConfig, model: ServedVersion) -> Continuation:
    """Find the optimizer of the update that made the served model. Raises StateRefused if there is none."""
    if not trainer.continue_optimizer:
        raise StateRefused("trainer.continue_optimizer is false")
    state = find_progress(model.folder / versions.TRAINER) if model.folder is not None else None
    if state is None:
        raise StateRefused("the served model came without an optimizer's state that can be read")
    record = model.record
    return Continuation(
        state,
        learning_rate=record.learning_rate if record is not None else trainer.learning_rate,
        steps_before=record.update_steps if record is not None else state.global_step,
        first_step=0 if restarts_schedule(trainer) else state.global_step,
        digests=model.trainer_files,
    )


def _continue(
    plan: Plan,
    iteration: int,
    weights: TrainingStart,
    setup: TrainingSetup,
    new_steps: int,
    continuation: Continuation,
) -> TrainingStart:
    """Continue a saved state of the optimizer. Raises StateRefused if it does not fit or has changed."""
    state, trainer = continuation.state, plan.config.llamafactory
    if reason := misfit(state, trainer, setup) or first_difference(state.folder, continuation.digests):
        raise StateRefused(reason)
    resume = resume_folder(
        state,
        plan.paths.update_dir(iteration) / RESUME,
        trainer,
        at=continuation.first_step + continuation.done_steps,
        new_steps=new_steps,
        old_learning_rate=continuation.learning_rate,
    )
    deepspeed = reshape_if_needed(state, setup, resume, trainer.timeout_s)
    if done := continuation.done_steps:
        _log.info("the interrupted training continues after step %d of %d", done, new_steps)
    return replace(
        weights,
        adapter=None,  # Trainer loads it from the folder
        resume_from=resume,
        deepspeed=deepspeed,
        steps_before=continuation.steps_before,
        first_step=continuation.first_step,
        max_steps=continuation.first_step + new_steps,
    )
