"""Two pools of two runs share a real vLLM, in which each run has an adapter of its own."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
import torch

from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.publish.served import export
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.tensor_sources import Checkpoint
from rl_agent.worker.engine_process import EngineCommand
from rl_agent.worker.several_pools import run_workers
from tests.integration.pool.publishing import announce, are_at
from tests.integration.pool.test_weights_in_vllm import FLAGS, LIMIT_S, ON_CPU
from tests.integration.pool.workers import settings
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.model.test_adapter_in_vllm import published, trained
from tests.integration.trainer.model.test_experts_in_vllm import greedy
from tests.integration.trainer.ranks import single_rank
from tests.integration.weights.test_vllm import PROMPTS, complete_all
from tests.support.pool_setup import greedy_item, manager
from tests.support.weight_transfers import host
from tests.unit.weights.weight_versions import open_store
from tests.unit.weights.weight_versions import settings as publishing

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]

LENGTH = 120


def scaled(policy: PolicyModel, factor: float) -> PolicyModel:
    """Another adapter, whose tokens differ from those of the first."""
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            parameter.data.mul_(factor)
    return policy


@asynccontextmanager
async def shared_by(folder: Path, *urls: str):
    """A worker for each pool; they share an engine."""
    flags = (*FLAGS, "--max-lora-rank", "8", "--enable-prefix-caching", "--block-size", "16")
    command = EngineCommand("vllm", "127.0.0.1", None, flags, os.environ | ON_CPU, loads_weights=True)
    more = {"model": None, "capacity": 8, "manager_timeout_s": 60.0, "start_timeout_s": 300.0}
    pools = [settings(url, folder, command=command, **more) for url in urls]
    leaving = asyncio.Event()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
        jobs.create_task(run_workers(pools, session, leaving))
        try:
            yield
        finally:
            leaving.set()


async def begin_samples(pool, run: str) -> None:
    """Submit a long request for each prompt, and wait until the engine is at them."""
    items = [greedy_item(f"r{number}", prompt, LENGTH) for number, prompt in enumerate(PROMPTS)]
    items = [item | {"min_weight_version": 1} for item in items]
    tokens = pool.state.account.tokens
    await pool.call("POST", f"/runs/{run}/requests", {"requests": items})
    await pool.until(lambda: pool.state.account.tokens > tokens + 40, LIMIT_S)


async def end_samples(pool, run: str) -> tuple[list[list[int]], set[int]]:
    """Return the tokens by prompt, and the weight versions with which they were sampled."""
    samples = await pool.samples(run, at_least=len(PROMPTS), wait_s=LIMIT_S)
    assert len(samples) == len(PROMPTS) and all(sample["is_completed"] for sample in samples)
    versions = {span["weight_version"] for sample in samples for span in sample["spans"]}
    return [sample["token_ids"] for sample in sorted(samples, key=lambda each: each["id"])], versions


def engine_process() -> int:
    """The process of the engine, which leads its group."""
    [pid] = {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "rl_agent.engine.vllm_serve" in child.cmdline() and os.getpgid(child.pid) == child.pid
    }
    return pid


async def test_two_runs_with_adapters_share_an_engine_and_change_no_token(tmp_path):
    base = make_tiny_model(tmp_path / "base", hidden_size=128)
    other = make_tiny_model(tmp_path / "other", hidden_size=128, seed=1)
    expected, adapters = {"base": greedy(base)}, {"a": [], "b": []}
    with (
        single_rank() as ranks,
        host(open_store(tmp_path / "a")) as sender_a,
        host(open_store(tmp_path / "b")) as sender_b,
    ):
        senders = {"a": sender_a, "b": sender_b}
        for name, steps, factor in (("a", 3, 1.0), ("a", 1, 1.0), ("b", 3, -1.0), ("b", 1, -1.0)):
            policy, number = scaled(trained(base, ranks, steps), factor), len(adapters[name]) + 1
            adapters[name].append(published(senders[name].store, number, policy, base))
            export(policy, ranks, base, folder := tmp_path / f"{name}{number}", torch.float32)
            expected[f"{name}{number}"] = greedy(folder)
            if (name, number) == ("b", 1):
                long_b = greedy(folder, LENGTH)
        assert len({str(tokens) for tokens in expected.values()}) == 5
        words = (f"model={base}", "lease_s=20", "stall_timeout_s=120")
        async with manager(*words) as a, manager(*words) as b, shared_by(tmp_path, a.url, b.url):
            pools = {"a": a, "b": b}

            async def update(name: str, version: int) -> None:
                await announce(pools[name], senders[name], adapters[name][version - 1])
                await pools[name].until(are_at(pools[name], version, 1), LIMIT_S)

            async def answers() -> list[str]:
                given = [await complete_all(pool.url) for pool in (a, b)]
                return [
                    next((name for name in expected if expected[name] == tokens), "?") for tokens in given
                ]

            await a.until(are_at(a, 0, 1), LIMIT_S)
            await b.until(are_at(b, 0, 1), LIMIT_S)
            pid = engine_process()
            assert await answers() == ["base", "base"]
            await update("a", 1)
            assert await answers() == ["a1", "base"]
            await update("b", 1)
            assert await answers() == ["a1", "b1"]
            await begin_samples(b, "through an update of a")
            await update("a", 2)
            assert await end_samples(b, "through an update of a") == (long_b, {1})
            assert await answers() == ["a2", "b1"]
            shares = [engine.offer.capacity for pool in (a, b) for engine in pool.state.engines.values()]
            assert shares == [4, 4]

            await begin_samples(b, "through the death of the engine")
            os.killpg(pid, signal.SIGKILL)
            assert await end_samples(b, "through the death of the engine") == (long_b, {1})
            await a.until(are_at(a, 2, 1), LIMIT_S)
            assert [pool.state.account.engine_deaths for pool in (a, b)] == [1, 1]
            assert engine_process() != pid
            assert await answers() == ["a2", "b1"]

            whole = Publisher(sender_a.store, publishing()).publish(3, Checkpoint.of(other))
            await announce(a, sender_a, whole)
            [engine] = a.state.engines.values()
            await a.until(lambda: "trainer.lora.publish=adapter" in engine.weights.problem, LIMIT_S)
            await update("b", 2)
            assert engine.weight_version == 2 and await answers() == ["a2", "b2"]

            pid = engine_process()
            await a.call("POST", "/model", {"model": str(base), "weight_version": 4})
            await a.until(are_at(a, 4, 1), LIMIT_S)  # as the first version of another run's
            assert await answers() == ["base", "b2"] and engine_process() == pid
