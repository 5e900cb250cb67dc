"""A server is paused only for a version that is right, and resumes only with one version whole."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import TornEngine
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.load.vllm_names import AS_STARTED
from rl_agent.weights.store.store import FULL


class FakeServer:
    """Answers vLLM's routes; `failing` names the (route, version) pairs that do not work."""

    def __init__(self, failing=(), missing=(), refused=None, refusals=None):
        self.failing, self.missing = set(failing), missing
        self.refused, self.refusals = refused, refusals
        self.calls, self.is_paused, self.weight_version = [], False, 0

    async def answer(self, request):
        body = await request.json() if request.can_read_body else {}
        version = body["args"][1] if body.get("args") else None
        self.calls.append(request.path)
        if request.path in self.missing:
            return web.Response(status=404, text='{"detail": "Not Found"}')
        if (request.path, version) in self.failing or (request.path, None) in self.failing:
            return web.Response(status=500, text="broken")
        if request.path == "/pause":
            self.is_paused = True
        if request.path == "/resume":
            self.is_paused = False
        if request.path == "/collective_rpc":
            self.weight_version, self.arguments = version, body["args"]
            results = [{"digest": body["args"][2], "load_s": 0.1}]
            if version == self.refused:  # by one of two workers
                results.append({"error": "WeightsError: broken"})
            return web.json_response({"results": self.refusals or results})
        if request.path == "/reset_prefix_cache":
            return web.json_response({"success": True})
        return web.Response()


async def load(server, store, weight_version, previous):
    async with RawTestServer(server.answer) as engine, aiohttp.ClientSession() as session:
        running = VllmServer(session, f"http://127.0.0.1:{engine.port}", timeout_s=10)
        with store.hold(weight_version) as snapshot, store.hold(previous or weight_version) as older:
            return await running.load(snapshot, previous=older if previous else None)


def test_a_server_that_has_no_label_for_versions_takes_them_without(store):
    server = FakeServer(missing=("/update_weight_version",))
    assert asyncio.run(load(server, store, 2, 1)).weight_version == 2
    assert (server.weight_version, server.is_paused) == (2, False)


def test_a_server_loads_what_was_verified_and_drops_its_caches(store):
    server = FakeServer()
    report = asyncio.run(load(server, store, 2, 1))
    caches = ["/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"]
    assert server.calls == ["/pause", "/collective_rpc", *caches, "/update_weight_version", "/resume"]
    assert (report.weight_version, report.load_s) == (2, 0.1)
    with store.hold(2) as two:
        assert server.arguments == [str(store.root), 2, two.manifest.digest, list(two.stamp())]


def test_a_damaged_version_is_refused_before_the_server_is_paused(store):
    server = FakeServer()
    with store.hold(2) as snapshot:
        path = snapshot.path(FULL)
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(WeightsError, match="differ from their digests"):
        asyncio.run(load(server, store, 2, 1))
    assert server.calls == []


@pytest.mark.parametrize(
    ("fault", "held"),
    [
        ({"failing": [("/collective_rpc", 2)]}, 1),
        ({"failing": [("/pause", None)]}, 0),
        ({"refused": 2}, 1),
    ],
    ids=["no worker loads it", "no pause", "one worker does not load it"],
)
def test_a_version_that_cannot_be_loaded_leaves_the_one_before_serving(store, fault, held):
    server = FakeServer(**fault)
    with pytest.raises(WeightsError, match="broken") as caught:
        asyncio.run(load(server, store, 2, 1))
    assert not isinstance(caught.value, TornEngine)
    assert (server.weight_version, server.is_paused) == (held, False)


@pytest.mark.parametrize(
    ("failing", "previous"),
    [
        ({("/collective_rpc", 1), ("/collective_rpc", 2)}, 1),
        ({("/collective_rpc", 2)}, None),
        ({("/reset_prefix_cache", None)}, 1),
    ],
)
def test_a_server_that_holds_no_version_stays_paused(store, failing, previous):
    server = FakeServer(failing)
    with pytest.raises(TornEngine):
        asyncio.run(load(server, store, 2, previous))
    assert server.is_paused


@pytest.mark.parametrize(
    ("refusals", "is_paused"),
    [
        ([{"error": "no", "held": AS_STARTED}] * 2, False),
        ([{"error": "no", "held": 7}, {"error": "no", "held": 6}], True),
        ([{"error": "no", "held": None}], True),
        ([{"error": "no", "held": 7}, {"digest": "d", "load_s": 0.1}], True),
    ],
)
def test_a_server_goes_on_with_what_it_holds_where_no_worker_has_changed(store, refusals, is_paused):
    server = FakeServer(refusals=refusals)
    with pytest.raises(WeightsError, match="no") as caught:
        asyncio.run(load(server, store, 2, None))
    assert server.is_paused == is_paused == isinstance(caught.value, TornEngine)
