"""A server is paused only for a version that is right, and resumes only with one version whole."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from safetensors.torch import load_file

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import TornEngine
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.load.vllm_names import AS_STARTED
from rl_agent.weights.store.store import FULL
from tests.unit.weights.adapters import LAYER, make_base, publish_adapter
from tests.unit.weights.weight_versions import open_store


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
            if self.arguments[4] is not None:
                folder = Path(self.arguments[4][0])
                config = json.loads((folder / "adapter_config.json").read_bytes())
                self.adapter = config, load_file(folder / "adapter_model.safetensors")
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
        assert server.arguments == [str(store.root), 2, two.manifest.digest, list(two.stamp()), None]


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


async def load_adapter(server, snapshot, model):
    async with RawTestServer(server.answer) as engine, aiohttp.ClientSession() as session:
        running = VllmServer(session, f"http://127.0.0.1:{engine.port}", str(model), timeout_s=10)
        return await running.load(snapshot, previous=None)


def test_an_adapter_is_given_as_a_folder_of_pefts_format(tmp_path):
    base, server = make_base(tmp_path / "base"), FakeServer()
    with open_store(tmp_path / "store") as store:
        report = asyncio.run(load_adapter(server, publish_adapter(store, base), base))
    assert report.weight_version == 1
    (folder, slot), config, tensors = server.arguments[4], *server.adapter
    assert config == {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["up_proj"]}
    assert sorted(tensors) == [f"base_model.model.{LAYER}.lora_{side}.weight" for side in "AB"]
    assert not Path(folder).exists() and slot == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "is not the model that the adapter was made for, though of the same shape"),
        ({"outputs": 5}, r"up_proj.weight of the engine's has the shape \(5, 4\), not \(6, 4\)"),
    ],
)
def test_an_adapter_for_another_model_is_refused_before_the_pause(tmp_path, changes, words):
    base, other, server = make_base(tmp_path / "base"), make_base(tmp_path / "x", **changes), FakeServer()
    with open_store(tmp_path / "store") as store, pytest.raises(WeightsError, match=words):
        asyncio.run(load_adapter(server, publish_adapter(store, base), other))
    assert server.calls == []


def test_an_engine_whose_model_is_not_here_gets_no_adapter(tmp_path):
    base, server = make_base(tmp_path / "base"), FakeServer()
    with open_store(tmp_path / "store") as store, pytest.raises(WeightsError, match="is not on this host"):
        asyncio.run(load_adapter(server, publish_adapter(store, base), tmp_path / "nowhere"))
    assert server.calls == []


def test_a_base_model_whose_files_change_takes_no_more_adapters(tmp_path):
    base, server = make_base(tmp_path / "base"), FakeServer()

    async def load_twice(store):
        async with RawTestServer(server.answer) as engine, aiohttp.ClientSession() as session:
            running = VllmServer(session, f"http://127.0.0.1:{engine.port}", str(base), timeout_s=10)
            first, second = (publish_adapter(store, base, version) for version in (1, 2))
            await running.load(first, previous=None)
            make_base(tmp_path / "other", seed=1)
            (tmp_path / "other" / "model.safetensors").replace(base / "model.safetensors")
            await running.load(second, previous=first)

    with open_store(tmp_path / "store") as store, pytest.raises(WeightsError, match="is not the model"):
        asyncio.run(load_twice(store))
    assert server.weight_version == 1
