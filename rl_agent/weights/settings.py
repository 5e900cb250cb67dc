"""The folders in which versions of weights lie, by the `weights` group."""

import os
import tempfile
from pathlib import Path

from rl_agent.config.plan import Plan
from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.weights.store.owner_lock import STORE_PREFIX

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders below it have a name of their user's own
_TRAINER = "trainer"


def base_folder(weights: WeightsConfig) -> Path:
    """Return the folder below which stores are made."""
    is_usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return weights.store or (SHARED_MEMORY if is_usable else Path(tempfile.gettempdir()))


def store_folder(plan: Plan) -> Path:
    """Return the folder of this node's stores for this start of the run."""
    return base_folder(plan.config.weights) / f"{STORE_PREFIX}{plan.run_id}-{plan.incarnation}"


def trainer_folder(plan: Plan) -> Path:
    """Return the store folder of this node's streaming trainer."""
    return store_folder(plan) / _TRAINER


def trainer_folders(base: Path) -> list[Path]:
    """List the folders in which trainers of this host may have versions, for a worker with its own in `base`.

    A run's own worker keeps them below the run's folder, any other beside the runs' folders.
    """
    return [base / _TRAINER, *base.glob(f"{STORE_PREFIX}*/{_TRAINER}")]
