"""Settings of a trainer process: the sections of `trainer=grpo`, and what the run adds."""

import os
from pathlib import Path
from typing import Literal

from rl_agent.config.sections.base import Count, Positive, Seconds, Section, Seed
from rl_agent.config.sections.grpo import Placement, TrainingConfig
from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.pool.client import Manager
from rl_agent.pool.manager_file import ManagerFile


class SharingSettings(Section):
    """An engine of the pool that has the trainer's devices in turns with it."""

    placement: Placement
    turn: Path
    """File that says whose turn it is."""
    engine: str
    """Its name in the pool."""
    timeout_s: Seconds
    """It must give the devices back within this."""
    resamples: bool
    """Other groups are sampled in place of those that are left out."""


class StreamSettings(Section):
    """A run to train along with: all that the trainer's ranks know of it, settled once by the master.

    Some of it is in `plan.json`, too; but a trainer can be started and tested without a run, and a later
    start of the run changes nothing for a trainer that is running. Of the plan, rank 0 reads the sample
    alone, where groups are dealt in its order.
    """

    log_path: Path
    run_id: str
    group_size: Positive
    streamed: bool
    """True if groups are trained on while their iteration's rollout runs."""
    first_iteration: Positive
    last_iteration: Positive | None
    """None: until it is stopped."""
    ends_with_evaluation: bool = False
    """Engines fetch the last version until the driver ends this process."""
    start: Path | None
    """Checkpoint to begin from where this training has none yet."""
    served: str
    """Name of the model that this training begins from; empty: the base model."""
    engines_model: str
    """Name of the model that engines are started on, which is kept; empty: the base model."""
    engines_version: Count
    """Its weight version; newer ones are announced to the pool."""
    next_version: Positive
    """No version before it is free."""
    published: dict[int, int | None]
    """Announced versions of this run, with the iteration of each; None: it was given up."""
    manager: str | None
    """URL of the pool that gets the weights; None: nobody does."""
    manager_file: Path | None
    """File that states the manager's address, should it move; None: it does not."""
    manager_token_env_var: str
    manager_tls_ca: Path | None
    """Certificates of the manager that the system does not know."""
    silence_timeout_s: Seconds
    """The time without an episode after which the trainer gives up."""
    known_timeout_s: Seconds
    """The manager must know a version within this."""
    store: Path
    """Folder of the published versions."""
    progress: Path
    """File that says how far the trainer is."""
    keep_versions: Positive
    """Models kept under `checkpoints/`."""
    sharing: SharingSettings | None
    """None: the trainer has its devices to itself."""
    weights: WeightsConfig

    @property
    def pool_manager(self) -> Manager | None:
        """The client of the manager, with the token that this process's environment holds."""
        if self.manager is None:
            return None
        file = None if self.manager_file is None else ManagerFile(str(self.manager_file))
        token = os.environ.get(self.manager_token_env_var)
        return Manager(self.manager, token, self.manager_tls_ca, file)


class TrainerSettings(TrainingConfig):
    """The settings of a trainer process."""

    model: Path
    """A folder in Hugging Face's format."""
    reference: Path | None
    """The model of a KL term; None: `model`."""
    first_version: Count
    """Weight version of `model`."""
    output: Path
    metrics: Path
    """A line a step is appended to it."""
    export_dtype: Literal["bfloat16", "float32"]
    seed: Seed
    groups: Positive
    """Groups that the `mini_batches` steps of an iteration share."""
    stream: StreamSettings | None
    """None: steps are made without a run."""


def out_of_memory_file(settings: Path) -> Path:
    """Return the path of the empty file that a start with these settings leaves if a GPU's memory is full."""
    return settings.with_suffix(".out-of-memory")
