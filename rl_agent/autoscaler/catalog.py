"""The providers that `pool scale --provider NAME` knows, each imported once it is chosen.

A provider is a module of `providers` with `connect(settings) -> Provider`, which gets its settings as plain
values, and a model of those in `providers.settings`. One whose library has an environment of its own works
there as a process (`--provider-python`).
"""

import importlib
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rl_agent.pool.demand.records import Provider

PACKAGE = "rl_agent.autoscaler.providers"


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """The place of a provider's code, and how it runs."""

    module: str
    """Below `providers`."""
    settings: str
    """The class of its settings, in `providers.settings`."""
    summary: str
    has_own_process: bool = False
    """Its library blocks, or has pins of its own: it works as a process under `--provider-python`."""
    settle_s: float = 60.0
    """Seconds for which a list of its may lack a machine that is there."""


CATALOG: Mapping[str, ProviderEntry] = {
    "command": ProviderEntry(
        "command", "CommandSettings", "command lines for start, stop and list: any cloud"
    ),
    "ray": ProviderEntry(
        "ray_cluster",
        "RaySettings",
        "actors of a Ray cluster, which remembers them",
        has_own_process=True,
        settle_s=10.0,
    ),
    "slurm": ProviderEntry(
        "slurm", "SlurmSettings", "Slurm jobs, by sbatch, squeue and scancel", settle_s=10.0
    ),
}


def missing_program(name: str, settings: Any, python: str) -> str:
    """Return the setting or option whose program this machine lacks, and the program; empty if it has all."""
    programs = {"--provider-python": python} if CATALOG[name].has_own_process else settings.programs()
    for key, program in programs.items():
        if shutil.which(program) is None:
            return f"{key}: {program}"
    return ""


def settings_model(name: str) -> Any:
    """Return the class of a provider's settings."""
    return getattr(importlib.import_module(f"{PACKAGE}.settings"), CATALOG[name].settings)


@asynccontextmanager
async def connected(
    name: str, settings: Mapping[str, Any], python: str = sys.executable, call_limit_s: float | None = None
) -> AsyncIterator[Provider]:
    """Give the provider of this name while the block runs; one with an own process has a limit for a call."""
    from rl_agent.autoscaler.providers.remote import CALL_LIMIT_S, running

    entry = CATALOG[name]
    module = f"{PACKAGE}.{entry.module}"
    if entry.has_own_process:
        async with running(python, module, settings, call_limit_s or CALL_LIMIT_S) as provider:
            yield provider
    else:
        yield importlib.import_module(module).connect(settings)
