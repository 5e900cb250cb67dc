"""A real vLLM server takes an adapter alone while it runs, and answers as the merged model does."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
import torch

from rl_agent.engine import packed
from rl_agent.errors import WeightsError
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.publish.served import ServedAdapter, export
from rl_agent.weights.format.adapter import base_digest
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import files_in
from tests.integration.conftest import running_server
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.model.test_experts import load, train
from tests.integration.trainer.model.test_experts_in_vllm import greedy
from tests.integration.trainer.ranks import single_rank
from tests.integration.weights.test_vllm import PROMPTS, complete, complete_all
from tests.unit.weights.weight_versions import settings

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(900)]

KEPT_BESIDE = ("engine.extra_args.enable-lora=true", "engine.extra_args.max-lora-rank=8")
SAMPLING = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def trained(base: Path, ranks, steps: int = 3) -> PolicyModel:
    policy = load(base, ranks, lora={"rank": 4, "publish": "adapter"})
    for _ in range(steps):
        train(policy, ranks, base)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            parameter.data.mul_(30)  # so that what is generated changes
    return policy


def published(store: SnapshotStore, version: int, policy: PolicyModel, base: Path) -> Snapshot:
    digest = base_digest(files_in(base), threads=2)
    return Publisher(store, settings()).publish(version, ServedAdapter(policy, digest, torch.float32))


async def put(url: str, base: Path, version: Snapshot) -> None:
    async with aiohttp.ClientSession() as session:
        await VllmServer(session, url, str(base), timeout_s=120).load(version, previous=None)


async def update(url: str, base: Path, version: Snapshot) -> list[int]:
    """The tokens of a request that ran through the update."""
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        running = group.create_task(complete(session, url, [5, 6, 7], max_tokens=200))
        await put(url, base, version)
        return await running


async def packed_tokens(url: str, prompt: list[int], tokens: int = 24) -> list[int]:
    body = packed.packed_request(prompt, SAMPLING | {"max_tokens": tokens, "ignore_eos": True}, "r", None, ())
    async with aiohttp.ClientSession() as session, session.post(url + packed.PATH, data=body) as response:
        assert response.status == 200, await response.text()
        return list(packed.unpack(await response.read()).token_ids)


@pytest.mark.parametrize("words", [(), KEPT_BESIDE], ids=["added", "kept beside"])
def test_a_server_that_took_an_adapter_answers_as_the_merged_model(tmp_path, words):
    base = make_tiny_model(tmp_path / "base", hidden_size=128)
    other = make_tiny_model(tmp_path / "other", hidden_size=128, seed=1)
    with single_rank() as ranks, SnapshotStore(tmp_path / "store", keep_versions=9) as store:
        policy = trained(base, ranks)
        export(policy, ranks, base, tmp_path / "merged", torch.float32)
        small = published(store, 1, trained(base, ranks, 1), base)
        version = published(store, 2, policy, base)
        with running_server(base, tmp_path / "log", *words, max_num_seqs=8) as plan:
            url = plan.config.engine.base_url
            before = asyncio.run(complete_all(url))
            asyncio.run(put(url, base, small))
            during = asyncio.run(update(url, base, version))
            after = asyncio.run(complete_all(url))
            ours = [asyncio.run(packed_tokens(url, prompt)) for prompt in PROMPTS]
            with pytest.raises(WeightsError, match="is not the model that the adapter was made for"):
                asyncio.run(put(url, base, published(store, 3, trained(other, ranks, 0), other)))
            still = asyncio.run(complete_all(url))
    assert before == greedy(base)
    assert after == ours == still == greedy(tmp_path / "merged") != before
    assert len(during) == 200
