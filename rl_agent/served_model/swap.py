"""Loads the newest model into the running engine, as `weights=inplace` does instead of a restart.

    checkpoint ─► snapshot in memory, and its difference from the last ─► verified ─► pause ─ load ─ resume

The engine stops generating only for the load itself. If that fails, it loads the version before again, whose
snapshot is kept until then.
"""

import asyncio
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rl_agent.cluster.member.services import driver_pid
from rl_agent.config.plan import Plan
from rl_agent.engine.model import resolve_model
from rl_agent.errors import WeightsError
from rl_agent.served_model.verify import verify_model
from rl_agent.weights.load.base import LoadReport
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.settings import store_folder
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import Checkpoint, local_folder


@dataclass(frozen=True, slots=True)
class Swap:
    """Times and sizes of loading a version into the engine."""

    weight_version: int
    snapshot_s: float
    """Time to make and verify the snapshot, while the engine can generate."""
    pause_s: float
    load_s: float
    size_bytes: int

    def numbers(self) -> dict[str, float]:
        """Return the `weights/…` metrics."""
        return {
            "weights/snapshot_s": self.snapshot_s,
            "weights/pause_s": self.pause_s,
            "weights/load_s": self.load_s,
            "weights/bytes": self.size_bytes,
        }


def swap(plan: Plan, held: int) -> Swap:
    """Let the engine, which has loaded version `held`, serve the newest model.

    Raises WeightsError if that fails, StoreError if the model has changed since it was published; the engine
    then serves `held`, or has to be started again.
    """
    model = resolve_model(plan.config)
    weights, root, run = plan.config.weights, store_folder(plan), driver_pid(os.environ)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    began = time.monotonic()
    with (
        SnapshotStore(root, keep_versions=1, owner_pid=run) as store,
        ExitStack() as stack,
    ):
        publisher = Publisher(store, weights, serving_dtype=weights.serving_dtype)
        _publish(publisher, store, held, _folder(plan, held))
        previous = stack.enter_context(store.hold(held))
        _publish(publisher, store, model.weight_version, local_folder(model.path))
        snapshot = stack.enter_context(store.hold(model.weight_version))
        snapshot_s = time.monotonic() - began
        report = asyncio.run(_load(plan, snapshot, previous))
    return Swap(
        weight_version=model.weight_version,
        snapshot_s=snapshot_s,
        pause_s=report.pause_s,
        load_s=report.load_s,
        size_bytes=snapshot.manifest.full.size_bytes,
    )


async def _load(plan: Plan, snapshot: Snapshot, previous: Snapshot) -> LoadReport:
    async with aiohttp.ClientSession() as session:
        server = VllmServer(session, plan.config.engine.base_url)
        return await server.load(snapshot, previous=previous)


def _publish(publisher: Publisher, store: SnapshotStore, weight_version: int, folder: Path | None) -> None:
    if weight_version in store.versions:
        return
    if folder is None:
        raise WeightsError(f"version {weight_version} is not on this machine any more")
    verify_model(folder)
    publisher.publish(weight_version, Checkpoint.of(folder), has_receivers=False)


def _folder(plan: Plan, weight_version: int) -> Path | None:
    """Find the files of a version; those of version 0 may be the base model's."""
    published = plan.paths.version_dir(weight_version)
    if published.is_dir():
        return published
    return local_folder(plan.config.model.base_model) if weight_version == 0 else None
