"""A trainer that publishes versions, and engines that follow it."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import TypeAdapter

from rl_agent.pool.scheduler.reports import WeightsReport
from rl_agent.pool.schemas import WeightsOffer
from rl_agent.pool.settings import load_weights
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.worker.weight_cache import HostWeights
from rl_agent.worker.weight_follower import EngineWeights
from tests.support.weight_transfers import NO_MANAGER, TOKEN, StateDict
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
        with self.sender.store.hold(version) as snapshot:
            manifest = snapshot.manifest
        own = "tcp://{}:{}".format(*self.sender.server.address)
        return WeightsOffer(
            weight_version=version,
            digest=manifest.digest,
            delta_digest=manifest.delta_digest,
            transfer_token=TOKEN.decode(),
            sources=sources or (own,),
        )


@asynccontextmanager
async def following(folder, engine):
    """An engine and what brings weights into it; `said` are the reports in the order they were sent."""
    app = web.Application()
    app.router.add_post("/{route}", engine.answer)
    said = []
    folder.mkdir(exist_ok=True)
    transfer = load_weights([*QUICK, f"store={folder}"])
    async with TestServer(app) as reached, aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
        with HostWeights(transfer, "127.0.0.1", NO_MANAGER) as here:
            server = VllmServer(session, f"http://127.0.0.1:{reached.port}", timeout_s=10)

            async def say():
                TypeAdapter(WeightsReport).validate_json(json.dumps(weights.report()))
                said.append((weights.report(), engine.is_paused))

            weights = EngineWeights(here, server, say)
            job = jobs.create_task(weights.run())
            try:
                yield weights, said, job
            finally:
                job.cancel()
                await asyncio.wait([job])


async def until(condition, limit_s=60.0):
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is not an event
            await asyncio.sleep(0.01)


def serves(weights, version):
    return lambda: weights.report()["weight_version"] == version
