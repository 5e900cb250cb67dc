"""A trainer that publishes versions, and engines that follow it."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.test_utils import RawTestServer
from pydantic import TypeAdapter

from rl_agent.pool.scheduler.records import EngineState
from rl_agent.pool.scheduler.reports import WeightsReport
from rl_agent.pool.settings import load_weights
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.worker.weight_cache import HostWeights
from rl_agent.worker.weight_follower import EngineWeights
from tests.support.weight_transfers import NO_MANAGER, StateDict, announced, hold, offer_of
from tests.unit.weights.load.test_vllm_load import FakeServer
from tests.unit.weights.weight_versions import settings, small_step

QUICK = ("piece_timeout_s=5", "retries=1")


class Engine(FakeServer):
    """Notes which versions it was resumed with."""

    def __init__(self, failing=()):
        super().__init__(failing)
        self.served = []

    async def answer(self, request):
        answer = await super().answer(request)
        if request.path == "/resume":
            self.served.append(self.weight_version)
        return answer


class Trainer:
    """Publishes versions, each a small step from the one before."""

    def __init__(self, sender, state):
        self.sender, self.state = sender, state
        self.publisher = Publisher(sender.store, settings())

    def publish(self, version, seed=0):
        if version > 1:
            self.state = small_step(self.state, version + seed)
        self.publisher.publish(version, StateDict.of(self.state))

    def offer(self, version, *sources):
        snapshot = hold(self.sender, version)
        return offer_of(announced(snapshot), *(sources or self.sender.server.sources))


async def announce(pool, sender, snapshot, **more):
    """Tell a pool of a version that a sender has."""
    offer = offer_of(announced(snapshot), *sender.server.sources).model_dump(exclude_unset=True)
    status, answer = await pool.call("POST", "/weights", offer | more)
    assert (status, answer["is_accepted"]) == (200, True)


def are_at(pool, version, count=2):
    """Return what checks whether so many engines are ready, all with a version."""

    def check():
        ready = list(pool.state.living(EngineState.READY))
        return len(ready) == count and all(engine.weight_version == version for engine in ready)

    return check


@asynccontextmanager
async def following(folder, engine):
    """An engine and what brings weights into it; `reports` are in the order they were sent."""
    reports = []
    folder.mkdir(exist_ok=True)
    transfer = load_weights([*QUICK, f"store={folder}"])
    async with (
        RawTestServer(engine.answer) as reached,
        aiohttp.ClientSession() as session,
        asyncio.TaskGroup() as jobs,
    ):
        with HostWeights(transfer, "127.0.0.1", NO_MANAGER) as here:
            server = VllmServer(session, f"http://127.0.0.1:{reached.port}", timeout_s=10)

            async def report():
                TypeAdapter(WeightsReport).validate_json(json.dumps(weights.report()))
                reports.append((weights.report(), engine.is_paused))

            weights = EngineWeights(here, server, report)
            job = jobs.create_task(weights.run())
            try:
                yield weights, reports, job
            finally:
                job.cancel()
                await asyncio.wait([job])


def serves(weights, version):
    return lambda: weights.report()["weight_version"] == version
