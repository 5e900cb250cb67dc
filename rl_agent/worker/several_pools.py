"""Workers of several pools in one process, which share an engine."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

import aiohttp

from rl_agent.errors import HarnessError, deliberate
from rl_agent.worker.main import Worker
from rl_agent.worker.settings import WorkerSettings
from rl_agent.worker.shared_engine import SharedEngine

log = logging.getLogger(__name__)


def share_engine(pools: Sequence[WorkerSettings], leaving: asyncio.Event) -> list[WorkerSettings]:
    """Give the workers of several pools one engine, and each an equal part of its capacity and price.

    Requests come through the workers' tunnels, where it is added whose adapter they are for.
    """
    first, count, engine = pools[0], len(pools), SharedEngine(leaving)
    if count == 1:
        return [first]
    command, port = replace(first.command, adapter_slots=count), first.weights.peer_port
    return [
        replace(
            pool,
            name=first.name,
            command=command,
            log=first.log,
            is_direct=False,
            capacity=pool.capacity and pool.capacity // count,
            price_per_hour=pool.price_per_hour / count,
            weights=pool.weights.model_copy(update={"peer_port": port and port + slot}),
            shared=engine,
            slot=slot,
        )
        for slot, pool in enumerate(pools)
    ]


async def run_workers(
    pools: Sequence[WorkerSettings], session: aiohttp.ClientSession, leaving: asyncio.Event
) -> None:
    """Run a worker for each pool, all with one engine.

    One that fails lets the others go on; the last error is raised in the end. Raises UsageError for a token
    that cannot be read, before anything starts.
    """
    failures: list[HarnessError] = []
    workers = [Worker(settings, session) for settings in share_engine(pools, leaving)]

    async def run(worker: Worker, manager: str) -> None:
        try:
            await worker.run(leaving)
        except BaseExceptionGroup as raised:
            error = deliberate(raised)
            if not isinstance(error, HarnessError):
                raise
            failures.append(error)
            if len(failures) < len(pools):
                log.warning("the pool at %s is left to other engines: %s", manager, error)

    async with asyncio.TaskGroup() as jobs:
        for worker, settings in zip(workers, pools, strict=True):
            jobs.create_task(run(worker, settings.manager), name=settings.manager)
    if failures:
        raise failures[-1]
