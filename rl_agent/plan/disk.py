"""Estimates how much disk a run will take at most, and looks how much there is."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config.plan import Command, Config
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.errors import MachineError

_EPISODE_BYTES = 32 * 1024
"""A text episode of a few steps; images come on top and are not foreseen."""
_OPTIMIZER_FACTOR = 6
"""Bytes of a training checkpoint per byte of 16-bit weights: fp32 master copy and two AdamW moments."""
_RESERVE_BYTES = 256 * 1024**2
"""Logs, caches, and room to write a message when all else is full."""


@dataclass(frozen=True, slots=True)
class DiskEstimate:
    """Bytes: what the run may need at once, what is free, on which folder."""

    needed: int
    free: int
    folder: Path


def nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def can_be_written(folder: Path) -> bool:
    """Return whether this user may write in `folder`, or make it where it is not there."""
    nearest = nearest_existing(folder)
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def estimate(config: Config, command: Command, num_tasks: int, model_bytes: int) -> DiskEstimate:
    """Estimate the trajectories of the planned iterations (one if unlimited), models and optimizer."""
    episodes = num_tasks * config.rollout.group_size * (command.max_iterations or 1)
    needed = _RESERVE_BYTES + episodes * _EPISODE_BYTES
    if command.rl_phase != "rollout":
        needed += (config.trainer.keep_versions + 1) * model_bytes + _optimizer_bytes(config, model_bytes)
    folder = nearest_existing(config.log_path)
    return DiskEstimate(needed, shutil.disk_usage(folder).free, folder)


def _optimizer_bytes(config: Config, model_bytes: int) -> int:
    trainer = config.trainer
    if isinstance(trainer, TrainerConfig):
        return 0 if trainer.save_only_model else _OPTIMIZER_FACTOR * model_bytes
    # A model keeps the checkpoint it was made from; one more is being written.
    kept = trainer.checkpoint.keep + trainer.keep_versions + 1
    return kept * _OPTIMIZER_FACTOR * model_bytes


def check(estimate: DiskEstimate) -> None:
    """Refuse to begin where less is free than the estimate. Raises `MachineError`."""
    if estimate.free < estimate.needed:
        raise MachineError(
            f"--log-path: {gib(estimate.free)} free at {estimate.folder}, the run needs about"
            f" {gib(estimate.needed)} (trainer.keep_versions, trainer.save_only_model and"
            " trainer.checkpoint.keep change that)"
        )


def gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.1f} GiB"
