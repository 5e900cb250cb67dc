"""Helpers of the tests of publishing: trainings that just ended, and an engine's next weights."""

import os
from pathlib import Path

import numpy as np

from rl_agent.config.plan import Plan
from rl_agent.engine.model import ResolvedModel, resolve_model
from rl_agent.served_model.checks import check_model
from rl_agent.trainer.llamafactory.inputs import (
    TRAIN_FILE,
    UpdateSummary,
    digest_dataset,
    digest_settings,
    write_summary,
)
from rl_agent.trainer.llamafactory.publish import publish
from tests.unit.safetensors_files import value_of, write_checkpoint


def write_update_summary(folder: Path, *, tasks: int = 1, nodes: int = 1) -> UpdateSummary:
    """Write the summary of an update that is about to train on what lies in its folder."""
    summary = UpdateSummary(
        samples=5,
        validation_samples=0,
        candidates=9,
        iterations=(1,),
        tasks=tasks,
        left_out={},
        learning_rate=1e-3,
        started_from="/base",
        steps_before=0,
        first_step=0,
        new_steps=4,
        nodes=nodes,
        is_trained=False,
        files=digest_dataset(folder) | digest_settings(folder),
    )
    write_summary(folder, summary)
    return summary


def finish_training(plan: Plan, iteration: int, *, value: float | None = None, **extra: np.ndarray) -> Path:
    """The state of the disk between training and publishing; weights hold iteration / 8 unless told."""
    folder = plan.paths.update_dir(iteration)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRAIN_FILE).touch()
    write_update_summary(folder)
    weights = iteration / 8 if value is None else value
    return write_checkpoint(plan.paths.training_dir(iteration), 4 * iteration, value=weights, **extra)


def publish_iteration(plan: Plan, iteration: int) -> ResolvedModel:
    finish_training(plan, iteration)
    return publish(plan, iteration, os.environ, now=1000.0 + iteration)


def served_value(plan: Plan) -> float:
    """Return the weights that an engine would load now; checks that they are whole."""
    folder = Path(resolve_model(plan.config).path)
    check_model(folder, None)
    return value_of(folder)


def kept(plan: Plan) -> list[str]:
    return sorted(path.name for path in plan.paths.checkpoints.glob("version-*"))
