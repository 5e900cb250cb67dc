"""Loads of several runs into one server come one after the other, and none leaves it paused."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.weights.load.base import LoadRefused
from rl_agent.weights.load.vllm_names import CLEAR_ADAPTER
from rl_agent.weights.publish.publish import Publisher
from rl_agent.worker.shared_engine import SlotServer
from tests.support.weight_transfers import StateDict
from tests.unit.weights.adapters import make_base, publish_adapter
from tests.unit.weights.weight_versions import open_store, random_state, settings


class Server:
    """Notes what it is asked for; while it `hangs`, a call to its workers has no answer."""

    def __init__(self):
        self.asked, self.is_paused, self.hangs = [], False, None

    async def answer(self, request):
        body = await request.json() if request.can_read_body else {}
        if request.path in ("/pause", "/resume"):
            self.is_paused = request.path == "/pause"
            self.asked.append(request.path)
        if request.path != "/collective_rpc":
            return web.json_response({"success": True})
        if body["method"] == CLEAR_ADAPTER:
            self.asked.append(("clear", *body["args"]))
            return web.json_response({"results": [None]})
        _, _, digest, _, (_, slot) = body["args"]
        self.asked.append(("load", slot))
        if self.hangs is not None:
            self.hangs.set()
            await asyncio.Event().wait()
        return web.json_response({"results": [{"digest": digest, "load_s": 0.1}]})


@pytest.fixture
async def shared(tmp_path):
    """A server, two runs that share it, and a version for each."""
    base, server, turn = make_base(tmp_path / "base"), Server(), asyncio.Lock()
    with open_store(tmp_path / "store") as store:
        publish_adapter(store, base)
        async with RawTestServer(server.answer) as engine, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{engine.port}"
            runs = [SlotServer(session, url, str(base), slot, turn) for slot in (0, 1)]
            with store.hold(1) as snapshot:
                yield server, runs, snapshot


async def test_loads_of_two_runs_at_once_come_one_after_the_other(shared):
    server, runs, snapshot = shared
    await asyncio.gather(*(run.load(snapshot, previous=None) for run in runs))
    assert server.asked == ["/pause", ("load", 0), "/resume", "/pause", ("load", 1), "/resume"]


async def test_a_load_that_is_cancelled_leaves_no_pause_and_its_slot_is_cleared(shared):
    server, (first, second), snapshot = shared
    await first.clear()
    assert server.asked == [], "what was never loaded needs no pause"
    server.hangs = asyncio.Event()
    async with asyncio.TaskGroup() as jobs:
        loading = jobs.create_task(second.load(snapshot, previous=None))
        await server.hangs.wait()
        loading.cancel()
    server.hangs = None
    assert not server.is_paused
    await second.clear()
    await first.load(snapshot, previous=None)
    assert server.asked[2:] == [
        "/resume",
        "/pause",
        ("clear", 1),
        "/resume",
        "/pause",
        ("load", 0),
        "/resume",
    ]


async def test_whole_weights_are_refused_before_the_engine_is_paused(shared, tmp_path):
    server, (first, _), _ = shared
    with open_store(tmp_path / "whole") as store, pytest.raises(LoadRefused, match="publish adapters alone"):
        whole = Publisher(store, settings()).publish(1, StateDict.of(random_state()))
        await first.load(whole, previous=None)
    assert server.asked == []
