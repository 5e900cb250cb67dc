"""SGLang is paused only for a version that is right and its own, and goes on only with one version whole."""

import asyncio
import json
import threading
from pathlib import Path

import aiohttp
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from safetensors.torch import load_file, save_file

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import TornEngine
from rl_agent.weights.load.sglang_load import SglangServer
from tests.unit.weights.weight_sources import raising
from tests.unit.weights.weight_versions import publish_steps, random_state, same_bits, state_of

UPDATE = "/update_weights_from_disk"


CALLS = ["/server_info", "/pause_generation", UPDATE, "/model_info", "/continue_generation"]


class FakeSglang:
    """Answers SGLang's routes and reads the folder as it does; `failing` are (route, label) that do not work.

    `silent` are (route, label) that it does as it is told and breaks off the answer.
    """

    def __init__(self, failing=(), silent=(), says=None, **more):
        self.failing, self.silent, self.says = set(failing), set(silent), says
        self.settings = {"quantization": None, "weight_cache_mode": "off", **more}
        self.calls, self.held, self.served = [], {}, []
        self.is_paused, self.label = False, "default"

    async def answer(self, request):
        body = await request.json() if request.can_read_body else {}
        label = body.get("weight_version")
        self.calls.append(request.path)
        if {(request.path, label), (request.path, None)} & self.failing:
            return web.json_response({"success": False, "message": "broken"}, status=400)
        if request.path == "/server_info":
            return web.json_response(self.settings)
        if request.path == "/model_info":
            return web.json_response({"weight_version": self.says or self.label})
        if request.path == "/pause_generation":
            assert body == {"mode": "retract"}, "in place it would go on with what the old weights computed"
            self.is_paused = True
        if request.path == "/continue_generation":
            self.is_paused = False
            self.served.append(self.label)
        if request.path == UPDATE:
            assert self.is_paused
            assert body["flush_cache"]
            assert len(list(Path(body["model_path"]).parent.glob("loading-*"))) == 1, "two copies at once"
            self.held = load_file(Path(body["model_path"]) / "model.safetensors")
            self.label = label
        if {(request.path, label), (request.path, None)} & self.silent:
            request.transport.close()
        return web.json_response({"success": True})


async def load(server, store, weight_version, previous, *, model, on_loaded=None, is_checked=True):
    try:
        async with RawTestServer(server.answer) as engine, aiohttp.ClientSession() as session:
            running = SglangServer(session, f"http://127.0.0.1:{engine.port}", str(model), timeout_s=10)
            with store.hold(weight_version) as snapshot, store.hold(previous or weight_version) as older:
                return await running.load(snapshot, previous=older if previous else None, on_loaded=on_loaded)
    finally:
        assert not is_checked or not list(store.root.glob("loading-*")), "the folder stayed"


@pytest.fixture
def store(tmp_path):
    with publish_steps(tmp_path / "store", 2) as opened:
        yield opened


@pytest.fixture
def model(tmp_path):
    return model_of(tmp_path / "model", random_state())


def model_of(folder, state, **config):
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(server, store, weight_version, previous, model, **more):
    return asyncio.run(load(server, store, weight_version, previous, model=model, **more))


def test_a_version_is_read_whole_by_the_servers_loader_before_it_goes_on(store, model):
    server = FakeSglang()
    was_paused = []

    async def say():
        was_paused.append(server.is_paused)

    report = run(server, store, 2, 1, model, on_loaded=say)
    assert server.calls == CALLS
    assert (report.weight_version, server.label, server.served, was_paused) == (2, "2", ["2"], [True])
    with store.hold(2) as snapshot:
        expected = state_of(snapshot)
        assert server.held.keys() == expected.keys()
        assert all(same_bits(server.held[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state | {"more.weight": torch.ones(3)}, "more.weight is missing"),
        (lambda state: {name: state[name] for name in state if name != "scale"}, "scale is new"),
        (
            lambda state: state | {"norm.weight": torch.ones(6)},
            r"norm.weight has the shape \(7,\), the engine's \(6,\)",
        ),
    ],
)
def test_a_foreign_version_that_sglang_would_take_is_refused(store, tmp_path, change, words):
    server = FakeSglang()
    with pytest.raises(WeightsError, match=words):
        run(server, store, 2, 1, model_of(tmp_path / "other", change(random_state())))
    assert server.calls == ["/server_info"]


@pytest.mark.parametrize(
    ("setting", "config", "words"),
    [
        ({"quantization": "fp8"}, {}, "serves quantized weights .quantization=fp8."),
        ({}, {"quantization_config": {"bits": 4}}, "serves quantized weights .config.json."),
        (
            {"hicache_storage_backend": "file"},
            {},
            "with hicache_storage_backend: what older weights computed",
        ),
        ({"speculative_draft_model_path": "d"}, {}, "with speculative_draft_model_path: its draft model"),
        ({"weight_cache_mode": "on"}, {}, "with weight_cache_mode: other servers"),
    ],
)
def test_a_server_that_would_serve_wrongly_after_updates_gets_none(store, tmp_path, setting, config, words):
    server = FakeSglang(**setting)
    with pytest.raises(WeightsError, match=words) as caught:
        run(server, store, 2, 1, model_of(tmp_path / "model", random_state(), **config))
    assert "\n" not in str(caught.value)
    assert server.calls == ["/server_info"]


def test_a_server_whose_model_cannot_be_seen_is_given_no_version(store, tmp_path):
    with pytest.raises(WeightsError, match="nobody/nothing: is not on this host"):
        run(FakeSglang(), store, 2, 1, "nobody/nothing")


@pytest.mark.parametrize("broken", [(UPDATE, "2"), ("/pause_generation", None)])
def test_a_version_that_cannot_be_loaded_leaves_the_one_before_serving(store, model, broken):
    server = FakeSglang({broken})
    with pytest.raises(WeightsError, match="broken") as caught:
        run(server, store, 2, 1, model)
    assert not isinstance(caught.value, TornEngine)
    assert not server.is_paused
    assert server.served == (["1"] if broken[0] == UPDATE else ["default"])


@pytest.mark.parametrize(
    ("server", "previous", "words"),
    [
        (FakeSglang({(UPDATE, "1"), (UPDATE, "2")}), 1, "going back failed as well"),
        (FakeSglang({(UPDATE, "2")}), None, "no earlier version to go back to"),
        (FakeSglang(says="1"), None, "says that it has version 1 after a load of 2"),
        (FakeSglang({("/continue_generation", None)}), 1, "holds version 2 and does not go on"),
        # Its late answer would be taken for the answer to the next load.
        (FakeSglang(silent={(UPDATE, "2")}), 1, "what it has loaded is not known"),
    ],
)
def test_a_server_of_which_nobody_knows_what_it_holds_stays_paused(store, model, server, previous, words):
    with pytest.raises(TornEngine, match=words):
        run(server, store, 2, previous, model)
    assert server.is_paused
    assert server.served == []


def test_a_store_without_room_leaves_the_server_alone(store, model, monkeypatch):
    full = raising(OSError(28, "No space left on device"))
    monkeypatch.setattr("rl_agent.weights.store.model_folder._write", full)
    server = FakeSglang()
    with pytest.raises(WeightsError, match=r"cannot hold .* bytes of weights: .*No space left"):
        run(server, store, 2, 1, model)
    assert server.calls == ["/server_info"]


async def test_a_load_that_is_cancelled_while_the_folder_is_written_leaves_none(store, model, monkeypatch):
    began, end = threading.Event(), threading.Event()

    def write(*_):
        began.set()
        assert end.wait(60)

    monkeypatch.setattr("rl_agent.weights.store.model_folder._write", write)
    job = asyncio.create_task(load(FakeSglang(), store, 2, 1, model=model, is_checked=False))
    await asyncio.to_thread(began.wait, 60)
    assert list(store.root.glob("loading-*"))
    job.cancel()
    end.set()
    await asyncio.wait([job])
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not list(store.root.glob("loading-*"))
