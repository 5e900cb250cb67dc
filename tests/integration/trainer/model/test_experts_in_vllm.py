"""A real vLLM server takes a trained mixture of experts while it runs, and answers as transformers does."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_agent.trainer.grpo.publish.served import ServedWeights, export
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from tests.integration.conftest import running_server
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.model.test_experts import load, train
from tests.integration.trainer.ranks import single_rank
from tests.integration.weights.fingerprints import fingerprints, of_vllm
from tests.integration.weights.test_vllm import PROMPTS, complete_all
from tests.unit.weights.weight_versions import settings

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(900)]


def greedy(folder: Path, tokens: int = 24) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in PROMPTS:
        known = list(prompt)
        with torch.no_grad():
            for _ in range(tokens):
                known.append(int(model(torch.tensor([known])).logits[0, -1].argmax()))
        answers.append(known[len(prompt) :])
    return answers


async def update(url: str, version: Snapshot) -> tuple[str, ...]:
    async with aiohttp.ClientSession() as session:
        server = VllmServer(session, url, timeout_s=120)
        await server.load(version, previous=None)
        return await of_vllm(server)


def test_a_server_that_took_trained_experts_answers_as_a_fresh_one(tmp_path):
    base = make_tiny_model(tmp_path / "base", hidden_size=128, experts=8, tied=True)
    with single_rank() as ranks, SnapshotStore(tmp_path / "store", keep_versions=2) as store:
        policy = load(base, ranks)
        for _ in range(3):
            train(policy, ranks, base)
        export(policy, ranks, base, tmp_path / "trained", torch.float32)
        version = Publisher(store, settings()).publish(1, ServedWeights(policy, torch.float32))
        with running_server(base, tmp_path / "log", max_num_seqs=8) as plan:
            url = plan.config.engine.base_url
            before, untrained = asyncio.run(complete_all(url)), asyncio.run(fingerprints(url))
            updated = asyncio.run(update(url, version))
            after = asyncio.run(complete_all(url))
    with running_server(tmp_path / "trained", tmp_path / "log", max_num_seqs=8) as plan:
        fresh = asyncio.run(fingerprints(plan.config.engine.base_url))
    assert before == greedy(base)
    assert after == greedy(tmp_path / "trained") != before
    assert updated == fresh != untrained
