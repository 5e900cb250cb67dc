"""A server is paused only for a version that is right, and resumes only with one version whole."""

import asyncio
import os
from types import SimpleNamespace

import aiohttp
import pytest
import torch
from aiohttp import web

from rl_agent.errors import WeightsError
from rl_agent.testing.weight_transfers import StateDict
from rl_agent.weights.load.base import TornEngine, verify
from rl_agent.weights.load.fingerprint import fingerprint, served
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.load.vllm_names import AS_STARTED
from rl_agent.weights.load.vllm_worker import WeightsWorker
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import FULL
from tests.unit.weights.weight_versions import open_store, publish_steps, random_state, settings, state_of


class FakeServer:
    """Answers vLLM's routes; `failing` names the (route, version) pairs that do not work."""

    def __init__(self, failing=(), missing=(), refused=None, refusals=None):
        self.refusals = refusals
        self.failing = set(failing)
        self.refused = refused
        self.missing = missing
        self.calls = []
        self.is_paused = False
        self.weight_version = 0

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
            digest = body["args"][2]
            if self.refusals:
                return web.json_response({"results": self.refusals})
            if version == self.refused:  # by one of two workers
                loaded = {"digest": digest, "load_s": 0.1, "fingerprint": "f"}
                return web.json_response({"results": [loaded, {"error": "WeightsError: broken"}]})
            return web.json_response({"results": [{"digest": digest, "load_s": 0.1, "fingerprint": "f"}]})
        if request.path == "/reset_prefix_cache":
            return web.json_response({"success": True})
        return web.Response()


async def load(server, store, weight_version, previous):
    app = web.Application()
    app.router.add_post("/{route}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            running = VllmServer(session, f"http://127.0.0.1:{runner.addresses[0][1]}", timeout_s=10)
            with store.hold(weight_version) as snapshot, store.hold(previous or weight_version) as older:
                return await running.load(snapshot, previous=older if previous else None)
    finally:
        await runner.cleanup()


@pytest.fixture
def store(tmp_path):
    with publish_steps(tmp_path, 2) as opened:
        yield opened


def test_a_server_that_has_no_label_for_versions_takes_them_without(store):
    server = FakeServer(missing=("/update_weight_version",))
    assert asyncio.run(load(server, store, 2, 1)).weight_version == 2
    assert (server.weight_version, server.is_paused) == (2, False)


def test_caches_are_dropped_between_the_load_and_going_on(store):
    server = FakeServer()
    report = asyncio.run(load(server, store, 2, 1))
    assert server.calls == [
        "/pause",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/update_weight_version",
        "/resume",
    ]
    assert (report.weight_version, report.load_s, report.fingerprints) == (2, 0.1, ("f",))


def test_a_damaged_version_is_refused_before_the_server_is_paused(store):
    server = FakeServer()
    with store.hold(2) as snapshot:
        path = snapshot.path(FULL)
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(WeightsError, match="differ from their digests"):
        asyncio.run(load(server, store, 2, 1))
    assert server.calls == []


@pytest.mark.parametrize("broken", [("/collective_rpc", 2), ("/pause", None)])
def test_a_version_that_cannot_be_loaded_leaves_the_one_before_serving(store, broken):
    server = FakeServer({broken})
    with pytest.raises(WeightsError, match="broken") as caught:
        asyncio.run(load(server, store, 2, 1))
    assert not isinstance(caught.value, TornEngine)
    assert not server.is_paused
    assert server.weight_version == (1 if broken[0] == "/collective_rpc" else 0)


def test_a_version_that_one_of_the_workers_does_not_load_leaves_the_one_before_serving_in_all(store):
    server = FakeServer(refused=2)
    with pytest.raises(WeightsError, match="broken") as caught:
        asyncio.run(load(server, store, 2, 1))
    assert not isinstance(caught.value, TornEngine)
    assert (server.weight_version, server.is_paused) == (1, False)


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


class FakeWorker(WeightsWorker):
    device = torch.device("cpu")

    def __init__(self, model, data_parallel_size=1):
        self.parallel_config = SimpleNamespace(data_parallel_size=data_parallel_size)
        self.model_config = SimpleNamespace(model=str(model), quantization=None)
        self.model_runner = self
        self.loaded = {}

    def reload_weights(self, weights_iterator):
        self.loaded = dict(weights_iterator)

    def get_model(self):
        return self

    def named_parameters(self):
        return self.loaded.items()

    def named_modules(self):
        return []


def test_what_the_models_own_loader_raises_is_an_answer_and_the_worker_holds_no_version(store, tmp_path):
    worker = FakeWorker(tmp_path)

    def fail(weights_iterator):
        raise RuntimeError("no such parameter")

    worker.reload_weights = fail
    with store.hold(2) as two:
        answer = worker.rl_agent_load_weights(str(store.root), 2, two.manifest.digest)
    assert answer == {"error": "RuntimeError: no such parameter", "held": None}
    assert worker.rl_agent_held() == {"weight_version": None}


def test_a_worker_of_a_data_parallel_rank_raises_what_would_not_be_seen_as_an_answer(store, tmp_path):
    worker = FakeWorker(tmp_path, data_parallel_size=2)
    with pytest.raises(WeightsError, match="is not a weight version"):
        worker.rl_agent_load_weights(str(store.root), 9, "0" * 64)


def test_a_worker_loads_every_tensor_of_the_announced_version(store, tmp_path):
    worker = FakeWorker(tmp_path / "not a folder")
    with store.hold(2) as snapshot:
        result = worker.rl_agent_load_weights(str(store.root), 2, snapshot.manifest.digest)
        assert worker.loaded.keys() == state_of(snapshot).keys()
        assert result["fingerprint"] == fingerprint(state_of(snapshot).items())


def test_a_worker_refuses_what_is_not_announced_or_not_of_its_model_and_keeps_its_weights(store, tmp_path):
    worker = FakeWorker(tmp_path)
    with store.hold(2) as two:
        worker.rl_agent_load_weights(str(store.root), 2, two.manifest.digest)
    before = worker.rl_agent_fingerprint()
    other = Publisher(store, settings()).publish(3, StateDict.of({"norm.weight": torch.ones(7)}))
    assert (
        "is of another model"
        in worker.rl_agent_load_weights(str(store.root), 3, other.manifest.digest)["error"]
    )
    assert "not the announced version" in worker.rl_agent_load_weights(str(store.root), 2, "0" * 64)["error"]
    assert "is not a weight version" in worker.rl_agent_load_weights(str(store.root), 9, "0" * 64)["error"]
    assert worker.rl_agent_fingerprint() == before


def written_to(snapshot):
    """The same bytes again: what was verified is what was there before."""
    path = snapshot.path(FULL)
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


def test_a_worker_refuses_what_was_written_to_since_it_was_verified_and_keeps_its_weights(store, tmp_path):
    worker = FakeWorker(tmp_path)
    with store.hold(2) as two:
        stamp = list(verify(two))
        assert "error" not in worker.rl_agent_load_weights(str(store.root), 2, two.manifest.digest, stamp)
        written_to(two)
        answer = worker.rl_agent_load_weights(str(store.root), 2, two.manifest.digest, stamp)
    assert "was written to after it was verified" in answer["error"]
    assert answer["held"] == 2


@pytest.mark.parametrize("has_stamp", [True, False])
def test_a_version_that_is_written_to_while_a_worker_loads_it_is_not_served(store, tmp_path, has_stamp):
    worker = FakeWorker(tmp_path)
    load = worker.reload_weights
    with store.hold(2) as two:
        stamp = [list(verify(two))] if has_stamp else []

        def slow(weights_iterator):
            load(weights_iterator)
            written_to(two)

        worker.reload_weights = slow
        answer = worker.rl_agent_load_weights(str(store.root), 2, two.manifest.digest, *stamp)
    assert "was written to after it was verified" in answer["error"]
    assert answer["held"] is None


async def test_a_server_is_told_what_was_verified(store):
    server = FakeServer()
    await load(server, store, 2, None)
    with store.hold(2) as two:
        assert server.arguments == [str(store.root), 2, two.manifest.digest, list(two.stamp())]


def test_memory_that_is_written_again_is_told_from_what_it_was(tmp_path):
    with open_store(tmp_path, keep_versions=1) as small:
        publisher = Publisher(small, settings("never"))
        first = publisher.publish(1, StateDict.of(random_state(1)))
        inode, _, modified = first.stamp()
        publisher.publish(2, StateDict.of(random_state(2)))
        third = publisher.publish(3, StateDict.of(random_state(3)))  # in the memory of the first
        assert third.stamp()[0] == inode
        assert third.stamp()[2] > modified


def test_a_worker_of_a_quantized_engine_refuses_every_version_and_one_of_another_takes_no_quantized_one(
    store,
):
    worker = FakeWorker("no folder")
    with store.hold(2) as two:
        worker.model_config.quantization = "compressed-tensors"
        answer = worker.rl_agent_load_weights(str(store.root), 2, two.manifest.digest)
        assert "the engine serves quantized weights (compressed-tensors)" in answer["error"]
        assert (answer["held"], worker.loaded) == (AS_STARTED, {})
        worker.model_config.quantization = None
        assert "error" not in worker.rl_agent_load_weights(str(store.root), 2, two.manifest.digest)
        state = state_of(two) | {"norm.weight_scale": torch.ones(7)}
        made = Publisher(store, settings()).publish(3, StateDict.of(state))
        answer = worker.rl_agent_load_weights(str(store.root), 3, made.manifest.digest)
    assert "is of a quantized model, and the engine serves one that is not" in answer["error"]
    assert answer["held"] == 2


@pytest.mark.parametrize(
    ("refusals", "is_paused"),
    [
        ([{"error": "no", "held": AS_STARTED}] * 2, False),
        ([{"error": "no", "held": 7}, {"error": "no", "held": 6}], True),
        ([{"error": "no", "held": None}], True),
        ([{"error": "no", "held": 7}, {"digest": "d", "load_s": 0.1, "fingerprint": "f"}], True),
    ],
)
def test_a_server_goes_on_with_what_it_holds_where_no_worker_has_changed(store, refusals, is_paused):
    server = FakeServer(refusals=refusals)
    with pytest.raises(WeightsError, match="no") as caught:
        asyncio.run(load(server, store, 2, None))
    assert server.is_paused == is_paused == isinstance(caught.value, TornEngine)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_that_the_checkpoint_left_out_is_taken_only_if_it_is_the_embedding(tmp_path, is_tied):
    from safetensors.torch import save_file

    embedding = torch.randn(20, 4)
    (tmp_path / "model").mkdir()
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model" / "model.safetensors")
    worker = FakeWorker(tmp_path / "model")
    head = embedding if is_tied else embedding.clone() + 1
    state = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    with open_store(tmp_path / "store") as store:
        made = Publisher(store, settings()).publish(1, StateDict.of(state))
        if is_tied:
            worker.rl_agent_load_weights(str(store.root), 1, made.manifest.digest)
            assert torch.equal(worker.loaded["lm_head.weight"], embedding)
            return
        refusal = worker.rl_agent_load_weights(str(store.root), 1, made.manifest.digest)["error"]
        assert "lm_head.weight is new" in refusal


def test_a_fingerprint_sees_any_changed_bit_and_any_swap_but_no_order_of_names():
    state = {"a": torch.arange(10.0), "b": torch.zeros(3), "c": torch.zeros(0)}
    same = fingerprint(reversed(state.items()))
    assert fingerprint(state.items()) == same
    bits = state["a"].clone()
    bits.view(torch.int32)[4] ^= 1
    swapped = state["a"][torch.tensor([1, 0, *range(2, 10)])]
    for changed in ({"a": bits}, {"a": swapped}, {"b": torch.tensor([0.0, -0.0, 0.0])}):
        assert fingerprint((state | changed).items()) != same


class PackedLinear(torch.nn.Module):
    """Like a layer of vLLM on a CPU: its weight is where only its method finds it."""

    def __init__(self, packed):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(0))
        self.input_size, self.params_dtype = packed.shape[1], packed.dtype
        self.quant_method = SimpleNamespace(apply=lambda layer, rows, bias: rows @ packed.T)


def test_a_fingerprint_sees_weights_that_are_packed_away():
    def of(weight):
        return fingerprint(served(torch.nn.Sequential(PackedLinear(weight), torch.nn.Linear(3, 2))))

    torch.manual_seed(0)
    with torch.random.fork_rng():
        weight = torch.randn(5, 8)
        changed = weight.clone()
        changed[3, 4] *= 1.01
    prints = []
    for one in (weight, weight.clone(), changed):
        torch.manual_seed(1)
        prints.append(of(one))
    assert prints[0] == prints[1] != prints[2]
