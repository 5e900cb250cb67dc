"""A real vLLM server of int8 weights takes no version while it runs, says why, and goes on as it was.

vLLM 0.28 loads one on a CPU without an error, and then answers nonsense: also the very weights it had.
"""

import asyncio
import json
import shutil
from pathlib import Path

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import TornEngine
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import SnapshotStore
from rl_agent.weights.store.tensor_sources import Checkpoint
from tests.integration.tiny_model import make_tiny_model
from tests.integration.weights.test_vllm import complete_all, server
from tests.unit.weights.weight_versions import settings

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": INT8 | {"strategy": "channel", "dynamic": False},
            "input_activations": INT8 | {"strategy": "token", "dynamic": True},
        }
    },
}


def quantize(model: Path, target: Path) -> Path:
    """The same model with int8 weights and a scale for each row, as compressed-tensors writes it."""
    shutil.copytree(model, target)
    state = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            scale = tensor.float().abs().amax(1, keepdim=True) / 127
            state[name] = (tensor.float() / scale).round().to(torch.int8)
            state[f"{name}_scale"] = scale
        else:
            state[name] = tensor.to(torch.bfloat16)
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}))
    return target


async def refusals(url: str, store: SnapshotStore) -> list[str]:
    """The reason why it takes neither version."""
    reasons = []
    async with aiohttp.ClientSession() as session:
        for weight_version in store.versions:
            with store.hold(weight_version) as wanted, pytest.raises(WeightsError) as caught:
                await VllmServer(session, url, timeout_s=300).load(wanted, previous=None)
            assert not isinstance(caught.value, TornEngine), str(caught.value)
            reasons.append(str(caught.value))
    return reasons


def test_an_int8_engine_takes_no_version_and_others_take_no_int8_one(tmp_path):
    model = make_tiny_model(tmp_path / "model", hidden_size=128)
    int8 = quantize(model, tmp_path / "int8")
    with (
        SnapshotStore(tmp_path / "int8-versions", keep_versions=2) as int8_versions,
        SnapshotStore(tmp_path / "versions", keep_versions=2) as versions,
    ):
        Publisher(int8_versions, settings("never")).publish(1, Checkpoint.of(int8))
        Publisher(versions, settings("never")).publish(1, Checkpoint.of(model))
        with server(int8, tmp_path / "log-int8") as url:
            before = asyncio.run(complete_all(url))
            whys = [why for store in (int8_versions, versions) for why in asyncio.run(refusals(url, store))]
            assert len(whys) == 2
            assert all("the engine serves quantized weights (compressed-tensors)" in why for why in whys)
            assert asyncio.run(complete_all(url)) == before
        with server(model, tmp_path / "log-model") as url:
            before = asyncio.run(complete_all(url))
            (why,) = asyncio.run(refusals(url, int8_versions))
            assert "is of a quantized model" in why
            assert asyncio.run(complete_all(url)) == before
