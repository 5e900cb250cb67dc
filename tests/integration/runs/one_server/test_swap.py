"""The verb `swap` on a real vLLM server: the new model is served without a restart, or the old goes on."""

import asyncio
import os
import re
import shutil
import time
import urllib.request
from pathlib import Path

import aiohttp
import pytest
import torch

from rl_agent.cli.driver import swap as verb
from rl_agent.engine.server import Answer, probe
from rl_agent.served_model import versions
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import SnapshotStore
from rl_agent.weights.store.tensor_sources import Checkpoint
from tests.integration.conftest import running_server
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.unit.weights.weight_versions import settings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14], [20, 21]]
TOKENS = 16


@pytest.fixture
def run(vllm_server, tmp_path):
    """A run on the session's server, which serves its first model again afterwards."""
    port = vllm_server.plan.config.engine.port
    words = (
        f"engine.port={port}",
        "engine.max_model_len=256",
        "weights=inplace",
        f"weights.store={tmp_path}",
    )
    plan = make_plan(tmp_path / "log", vllm_server.model, *words)
    yield plan
    asyncio.run(serve_again(vllm_server.url, vllm_server.model, tmp_path / "first"))


async def serve_again(url: str, model: Path, root: Path) -> None:
    with SnapshotStore(root, keep_versions=1) as store:
        first = Publisher(store, settings("never")).publish(0, Checkpoint.of(model))
        async with aiohttp.ClientSession() as session:
            await VllmServer(session, url, timeout_s=120).load(first, previous=None)


def publish(plan, origin: Path, change) -> Path:
    """The next version of a run: `origin` with other weights."""
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(origin, dtype=torch.float32)
    with torch.no_grad():
        change(model)
    served = versions.served_folder(plan.paths)
    version = versions.next_version(plan.paths)
    folder = plan.paths.version_dir(version)
    shutil.copytree(origin, folder)
    model.save_pretrained(folder)
    record = versions.Published(
        weight_version=version,
        previous=served.name if served else None,
        run_id=plan.run_id,
        iteration=version,
        learning_rate=1e-3,
        samples=1,
        update_steps=1,
        created_at=time.time(),
    )
    versions.write_record(folder, record)
    versions.switch(plan.paths, folder)
    return folder


def shift(model) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def narrow(model) -> None:
    """A layer that no engine of this model takes."""
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(16, 16, bias=False)


def swap(plan, capsys) -> tuple[str, str]:
    path = plan.paths.log_path / "plan.json"
    plan.write(path)
    capsys.readouterr()
    answer = verb.main(["--plan", str(path), "--iteration", "1"]).fields["answer"]
    return answer, capsys.readouterr().err


def greedy(folder: Path) -> list[list[int]]:
    """Return transformers' answer with the weights of a folder."""
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(TOKENS):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        texts.append(tokens[len(prompt) :])
    return texts


async def answers(url: str, times: int = 1) -> list[list[int]]:
    """Ask all prompts, so many times, all at once."""
    async with aiohttp.ClientSession() as session:
        name = (await (await session.get(url + "/v1/models")).json())["data"][0]["id"]

        async def answer(prompt: list[int]) -> list[int]:
            body = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            async with session.post(url + "/v1/completions", json=body) as response:
                return (await response.json())["choices"][0]["token_ids"]

        return list(await asyncio.gather(*(answer(prompt) for prompt in PROMPTS * times)))


def test_a_running_engine_takes_a_new_model_and_refuses_a_broken_one(run, vllm_server, capsys):
    before = asyncio.run(answers(vllm_server.url))
    new = publish(run, vllm_server.model, shift)
    assert probe(run.config, {}).answer is Answer.OLD_VERSION

    answer, why = swap(run, capsys)
    assert answer == "wanted", why
    assert probe(run.config, {}).weight_version == 1
    after = asyncio.run(answers(vllm_server.url))
    assert after == greedy(new) != before

    publish(run, new, narrow)
    answer, why = swap(run, capsys)
    assert answer == "old-version"
    assert "is of another model" in why
    assert probe(run.config, {}).weight_version == 1
    assert asyncio.run(answers(vllm_server.url)) == after

    versions.rollback(run.paths)
    assert probe(run.config, {}).answer is Answer.WANTED


CORES = "|".join(map(str, (sorted(os.sched_getaffinity(0)) * 4)[:4]))
TWO_RANKS = (
    "engine.data_parallel_size=2",
    "+engine.extra_args.api-server-count=1",
    "engine.extra_env.VLLM_ENABLE_V1_MULTIPROCESSING='1'",
)
WHOLE = ("engine.extra_args.distributed-executor-backend=null",)
SPLIT = (
    "engine.tensor_parallel_size=2",
    "engine.extra_args.distributed-executor-backend=mp",
    # Left alone, vLLM wants a NUMA node for each of the four workers.
    f"+engine.extra_env.VLLM_CPU_OMP_THREADS_BIND='{CORES}'",
)


@pytest.mark.extended
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("words", [WHOLE, SPLIT], ids=["whole", "split over two workers each"])
def test_all_data_parallel_ranks_take_the_new_model(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr("tests.integration.conftest.START_TIMEOUT_S", 900)
    model = make_tiny_model(tmp_path / "model", hidden_size=128)
    words = (*TWO_RANKS, *words, f"weights.store={tmp_path}")
    with running_server(model, tmp_path / "log", *words, max_num_seqs=8) as plan:
        url = plan.config.engine.base_url
        new = publish(plan, model, shift)
        answer, why = swap(plan, capsys)
        assert answer == "wanted", why
        assert asyncio.run(answers(url, times=8)) == greedy(new) * 8
        with urllib.request.urlopen(url + "/metrics") as response:
            text = response.read().decode()
        counts = re.findall(r'^vllm:generation_tokens_total{engine="(\d)".* (\S+)$', text, re.M)
    assert {rank for rank, tokens in counts if float(tokens) > 0} == {"0", "1"}, "one rank was never asked"
