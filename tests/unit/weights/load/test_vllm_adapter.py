"""A vLLM server keeps an adapter beside its weights or adds it to them, and refuses what it could not use."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import LayerShape
from rl_agent.weights.load import vllm_adapter
from rl_agent.weights.load.vllm_names import AS_STARTED, SLOTS
from tests.unit.weights.adapters import make_base, publish_adapter
from tests.unit.weights.load.test_same_model import FakeWorker
from tests.unit.weights.weight_versions import open_store

LAYERS = {"model.layers.0.mlp.up_proj": LayerShape(16, 4, 6)}


class Engine:
    """An engine as an API process has it."""

    def __init__(self, *, has_adapters, max_loras=2):
        lora = SimpleNamespace(max_loras=max_loras) if has_adapters else None
        parallel = SimpleNamespace(worker_extension_cls="WeightsWorker")
        self.vllm_config = SimpleNamespace(lora_config=lora, parallel_config=parallel)
        self.called = []

    async def collective_rpc(self, method, args):
        self.called.append((method, *args))

    def generate(self, prompt, *, lora_request=None):
        return prompt, lora_request


def manager(*modules, packed=None, is_begun=True):
    adapters = SimpleNamespace(model=SimpleNamespace(), modules=modules, packed_modules=packed or {})
    known = {vllm_adapter._ID: None, vllm_adapter._ID + 1: None} if is_begun else {}
    return SimpleNamespace(_adapter_manager=adapters, list_adapters=lambda: known)


def runner(*modules, rank=16, **options):
    config = SimpleNamespace(max_lora_rank=rank)
    return SimpleNamespace(lora_config=config, lora_manager=manager(*modules, **options))


def test_every_request_of_an_engine_with_adapters_is_for_its_own(monkeypatch):
    monkeypatch.setattr(vllm_adapter, "_request", lambda slot, folder: f"own {slot}")
    engine = Engine(has_adapters=True)
    asyncio.run(vllm_adapter.use_adapters(engine, {}))
    assert engine.called == [("rl_agent_begin_adapters", 1)]
    assert engine.generate("hello") == engine.generate("hello", lora_request=None) == ("hello", "own 0")
    assert engine.generate("hello", lora_request="the user's") == ("hello", "the user's")


def test_an_engine_with_room_for_one_adapter_takes_none_of_the_users(monkeypatch):
    """The other one would put the pool's out, and vLLM's engine would end with the next request for that."""
    monkeypatch.setattr(vllm_adapter, "_request", lambda slot, folder: f"own {slot}")
    engine = Engine(has_adapters=True, max_loras=1)
    asyncio.run(vllm_adapter.use_adapters(engine, {}))
    assert engine.generate("hello") == ("hello", "own 0")
    with pytest.raises(ValueError, match="start it with --max-loras 2"):
        engine.generate("hello", lora_request="the user's")


def test_a_request_is_for_the_adapter_that_its_header_names(monkeypatch):
    monkeypatch.setattr(vllm_adapter, "_request", lambda slot, folder: f"own {slot}")
    engine = Engine(has_adapters=True, max_loras=3)

    async def ask(*headers):
        vllm_adapter.choose_slot([(b"host", b"here"), *headers])
        return engine.generate("hello")

    async def ask_at_once():
        await vllm_adapter.use_adapters(engine, {SLOTS: "2"})
        return await asyncio.gather(ask((b"x-adapter-slot", b"1")), ask())

    assert asyncio.run(ask_at_once()) == [("hello", "own 1"), ("hello", "own 0")]
    assert engine.called == [("rl_agent_begin_adapters", 2)]
    assert engine.generate("hello", lora_request="the user's") == ("hello", "the user's")


def test_each_run_has_its_slot_which_is_zero_after_it(tmp_path):
    worker, base = AdaptedWorker("no folder"), make_base(tmp_path / "base")
    worker.rl_agent_begin_adapters(2)
    with open_store(tmp_path / "adapters") as adapters:
        publish_adapter(adapters, base)
        worker.load(adapters, 1, None, None, ("folder", 1))
    second = vllm_adapter._ID + 1
    assert (worker.numbers, worker.removed) == ([second], [])
    worker.rl_agent_clear_adapter(1)
    assert worker.removed == [second] and worker.zeros == [second - 1, second, second]
    assert worker.rl_agent_held() == {"weight_version": AS_STARTED}


def test_the_pools_adapter_stays_whatever_others_a_worker_loads(tmp_path):
    worker = AdaptedWorker("no folder")
    worker.rl_agent_begin_adapters(1)
    base = make_base(tmp_path / "base")
    with open_store(tmp_path / "adapters") as adapters:
        publish_adapter(adapters, base)
        worker.load(adapters, 1, None, None, ("folder", 0))
    assert worker.pinned == 2 * [vllm_adapter._ID]


def test_an_engine_without_adapters_is_left_as_it_is():
    engine = Engine(has_adapters=False)
    asyncio.run(vllm_adapter.use_adapters(engine, {}))
    assert (engine.called, engine.generate("hello")) == ([], ("hello", None))


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (runner("model.layers.0.mlp.up_proj", is_begun=False), "requests name no adapter"),
        (runner("model.layers.0.mlp.up_proj", rank=8), "has rank 16, the engine takes 8"),
        (runner("model.layers.0.mlp.down_proj"), "vLLM has no adapter for model.layers.0.mlp.up_proj"),
    ],
)
def test_what_a_worker_would_leave_out_is_refused(known, words):
    with pytest.raises(WeightsError, match=words):
        vllm_adapter.check_adapter(known, LAYERS, 0)


def test_a_layer_that_vllm_packs_with_others_is_known():
    whole = "model.layers.0.mlp.gate_up_proj"
    vllm_adapter.check_adapter(runner(whole, packed={whole: list(LAYERS)}), LAYERS, 0)


class AdaptedWorker(FakeWorker):
    """A worker whose engine was started with adapters."""

    lora_config = SimpleNamespace(max_lora_rank=8)

    def __init__(self, model):
        super().__init__(model)
        self.folders, self.pinned, self.numbers, self.removed, self.zeros = [], [], [], [], []
        self.lora_manager = manager("model.layers.0.mlp.up_proj")
        self.lora_manager.add_dummy_lora = lambda request, rank: self.zeros.append(request.lora_int_id)

    def pin_lora(self, number):
        self.pinned.append(number)

    def add_lora(self, request):
        self.folders.append(request.lora_path)
        self.numbers.append(request.lora_int_id)

    def remove_lora(self, number):
        self.removed.append(number)


def test_a_worker_keeps_to_adapters_or_to_whole_weights(tmp_path, store):
    base = make_base(tmp_path / "base")
    with open_store(tmp_path / "adapters") as adapters:
        publish_adapter(adapters, base)
        worker = AdaptedWorker("no folder")
        assert worker.load(adapters, 1, None, None, ("folder", 0))["weight_version"] == 1
        assert worker.folders == ["folder"]
        assert "holds an adapter, which would stay" in worker.load(store, 2)["error"]
        worker = AdaptedWorker("no folder")
        assert worker.load(store, 2)["weight_version"] == 2
        answer = worker.load(adapters, 1, None, None, ("folder", 0))
    assert "holds other weights than the base model's" in answer["error"]
    assert (answer["held"], worker.folders) == (2, [])


def test_a_worker_without_adapters_adds_them_to_the_base_models_files(tmp_path, store):
    base = make_base(tmp_path / "base")
    worker, before = FakeWorker(base), load_file(base / "model.safetensors")
    with open_store(tmp_path / "adapters") as adapters:
        for version in (1, 2):  # each to the files, none to what is served
            publish_adapter(adapters, base, version)
            assert worker.load(adapters, version, None, None, ("folder", 0))["weight_version"] == version
            (name,) = worker.loaded
            added = torch.full((6, 4), 2.0 * version)
            assert torch.equal(worker.loaded[name], before[name] + added)


def test_a_quantized_worker_adds_no_adapter_to_its_weights(tmp_path):
    base = make_base(tmp_path / "base")
    worker = FakeWorker(base)
    worker.model_config.quantization = "fp8"
    with open_store(tmp_path / "adapters") as adapters:
        publish_adapter(adapters, base)
        assert "start it with --enable-lora" in worker.load(adapters, 1, None, None, ("folder", 0))["error"]
    assert worker.loaded == {}
