"""The providers that `pool scale --provider NAME` knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rl_agent.autoscaler.providers.command import CommandProvider, CommandSettings
from rl_agent.autoscaler.providers.settings import ProviderSettings
from rl_agent.autoscaler.providers.slurm import SlurmProvider, SlurmSettings
from rl_agent.pool.demand.records import Provider


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """A provider, and the model of its settings."""

    connect: Callable[[Any], Provider]
    settings: type[ProviderSettings]
    summary: str
    settle_s: float
    """Seconds for which a list of its may lack a machine that is there."""


CATALOG: Mapping[str, ProviderEntry] = {
    "command": ProviderEntry(
        CommandProvider, CommandSettings, "command lines for start, stop and list: any cloud, or Ray", 60.0
    ),
    "slurm": ProviderEntry(SlurmProvider, SlurmSettings, "Slurm jobs, by sbatch, squeue and scancel", 10.0),
}
