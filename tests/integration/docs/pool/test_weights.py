"""The server that docs/explanation/weights.md starts, on a CPU, with a tiny model at a free port."""

import asyncio

import aiohttp
import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.served import version_taken
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import SnapshotStore
from rl_agent.weights.store.tensor_sources import Checkpoint
from tests.integration.docs.pool.test_use_a_running_server import START_TIMEOUT_S, is_ready
from tests.integration.docs.reader import Reader
from tests.integration.real_run import ENGINE_ARGS
from tests.integration.tiny_model import make_tiny_model
from tests.unit.weights.weight_versions import settings

PAGE = "docs/explanation/weights.md"
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(900)]


async def load(url: str, model, store: SnapshotStore) -> None:
    version = Publisher(store, settings("never")).publish(1, Checkpoint.of(model))
    async with aiohttp.ClientSession() as session:
        await VllmServer(session, url, timeout_s=120).load(version, previous=None)


def test_the_server_takes_a_version_that_is_published_while_it_runs(tmp_path, small):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    instead = {
        "vllm serve MODEL": f"python -m rl_agent.engine.vllm_serve {small.model} --port {port} {ENGINE_ARGS}"
    }
    reader = Reader(PAGE, tmp_path, instead)
    other = make_tiny_model(tmp_path / "other", seed=1, hidden_size=128)
    with reader.leaves_running(reader.block("VLLM_SERVER_DEV_MODE=1 vllm serve")) as server:
        server.wait_until(lambda: is_ready(port), START_TIMEOUT_S)
        with SnapshotStore(tmp_path / "versions", keep_versions=1) as store:
            asyncio.run(load(url, other, store))
        assert version_taken(url) == 1
