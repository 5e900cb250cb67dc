"""A real SGLang that joins with `join_pool.sh --engine sglang`, is killed, and takes weights as it generates.

RL_AGENT_SGLANG_PYTHON names an interpreter that has SGLang, RL_AGENT_SGLANG_ARGS what its server is to be
told on this machine, for example `--device cpu --attention-backend torch_native --sampling-backend pytorch`.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.engines.link import EngineLink
from rl_agent.weights.load.sglang_load import SglangServer
from rl_agent.weights.store.tensor_sources import Checkpoint
from tests.integration.conftest import stop_group
from tests.integration.pool.publishing import are_at
from tests.integration.pool.test_weights_in_vllm import LENGTH, keep_busy, publish
from tests.integration.tiny_model import make_tiny_model
from tests.integration.weights.fingerprints import of_sglang
from tests.integration.weights.test_vllm import train_step
from tests.support.pool_setup import Client, greedy_item, manager
from tests.support.weight_transfers import StateDict, host
from tests.unit.weights.weight_versions import open_store

JOIN = PROJECT_ROOT / "scripts" / "join_pool.sh"
PYTHON = os.environ.get("RL_AGENT_SGLANG_PYTHON", "")
# In half precision a token that was read and one that was sampled differ in the last bits, and so may a tie.
ARGS = f"--dtype float32 {os.environ.get('RL_AGENT_SGLANG_ARGS', '')}"
pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_SGLANG_PYTHON names no interpreter with SGLang"),
]

START_S = 500.0
PROMPTS = [[20 + number, 30, 40 + number % 7, 50] for number in range(6)]
TOKENS = 64
REFUSALS = {
    "a wrong parameter": ([20] * 8, {"temperature": -3.0}, "temperature must be"),
    "a prompt that is too long": ([20] * 4000, {}, "fills the"),
    "a penalty that a move would change": ([20] * 8, {"repetition_penalty": 1.3}, "repetition_penalty"),
}


@contextmanager
def joined(url: str, model: Path, folder: Path, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
    words = ["bash", str(JOIN), "--manager", url, "--engine", "sglang", "--engine-python", PYTHON]
    words += ["--model", str(model), "--name", "spot-1", "--start-timeout-s", str(START_S)]
    words += ["--engine-args", ARGS, "--log", str(folder / "engine.log"), *more]
    environ = os.environ | {"RL_AGENT_PYTHON": sys.executable}
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(words, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        yield worker
    finally:
        stop_group(worker)


def server_of(worker: "subprocess.Popen[bytes]") -> psutil.Process:
    children = psutil.Process(worker.pid).children()
    [server] = [child for child in children if "sglang.launch_server" in child.cmdline()]
    return server


async def submit(pool: Client, run: str, requests: dict[str, tuple[list[int], dict]]) -> None:
    items = [greedy_item(name, prompt, TOKENS, **more) for name, (prompt, more) in requests.items()]
    status, answer = await pool.call("POST", f"/runs/{run}/requests", {"requests": items})
    assert status == 202, answer


async def collected(pool: Client, run: str, count: int) -> dict[str, dict]:
    samples = await pool.samples(run, at_least=count, wait_s=300)
    assert len(samples) == count
    return {sample["id"]: sample for sample in samples}


async def test_sglang_serves_dies_and_goes_on_with_the_same_tokens(tmp_path):
    model = await asyncio.to_thread(make_tiny_model, tmp_path / "model", hidden_size=128)
    requests = {f"r{number}": (prompt, {}) for number, prompt in enumerate(PROMPTS)}
    async with manager("lease_s=30", "heartbeat_s=1", "stall_timeout_s=60") as pool:
        with joined(pool.url, model, tmp_path) as worker:
            await pool.until(lambda: any(e.state == "ready" for e in pool.state.engines.values()), START_S)
            await submit(pool, "whole", requests)
            whole = await collected(pool, "whole", len(requests))
            before = pool.state.account.tokens
            await submit(pool, "killed", requests)
            await pool.until(lambda: pool.state.account.tokens > before + TOKENS, 120)
            os.killpg(server_of(worker).pid, signal.SIGKILL)
            killed = await collected(pool, "killed", len(requests))
            await submit(pool, "refused", {name: case[:2] for name, case in REFUSALS.items()})
            refused = await collected(pool, "refused", len(REFUSALS))
            worker.terminate()
            assert await asyncio.to_thread(worker.wait, 60) == 0
    for name, sample in whole.items():
        assert not sample["failure"] and not killed[name]["failure"]
        assert len(sample["token_ids"]) == len(sample["logprobs"]) == TOKENS
        assert killed[name]["token_ids"] == sample["token_ids"]
        assert killed[name]["logprobs"] == pytest.approx(sample["logprobs"], abs=1e-3)
    assert any(sample["moves"] for sample in killed.values())
    # Nothing that the pool had was sampled again.
    assert pool.state.account.tokens == 2 * len(requests) * TOKENS
    assert pool.state.account.engine_deaths == 1
    assert pool.state.departed[-1].reason == "left in order"
    for name, (_, _, words) in REFUSALS.items():
        assert words in refused[name]["failure"]


def link_of(pool: Client) -> EngineLink:
    [reached] = pool.runtime.pool.links.values()
    return reached.link


async def given(pool: Client, run: str) -> dict[str, list[int]]:
    await submit(pool, run, {f"r{number}": (prompt, {}) for number, prompt in enumerate(PROMPTS)})
    return {name: sample["token_ids"] for name, sample in (await collected(pool, run, len(PROMPTS))).items()}


async def fingerprints(pool: Client, model: Path) -> tuple[str, ...]:
    """Digests by SGLang's own account of every parameter."""
    async with aiohttp.ClientSession() as session:
        url = str(link_of(pool)._transport._url)
        return await of_sglang(SglangServer(session, url, str(model), timeout_s=60))


async def test_sglang_loads_versions_while_it_generates_and_serves_them_exactly(tmp_path):
    first = await asyncio.to_thread(make_tiny_model, tmp_path / "first", hidden_size=128)
    second, third = tmp_path / "second", tmp_path / "third"
    await asyncio.to_thread(train_step, first, second)
    trained = await asyncio.to_thread(train_step, second, third)
    (tmp_path / "store").mkdir()

    rules = (f"model={first}", "lease_s=30", "heartbeat_s=1", "stall_timeout_s=60", "stream_interval=4")
    with host(open_store(tmp_path / "trainer")) as sender:
        async with manager(*rules) as pool:
            with joined(pool.url, first, tmp_path, "--weights", f"store={tmp_path / 'store'}"):
                await pool.until(are_at(pool, 0, 1), START_S)
                at_start = await given(pool, "at start")
                async with asyncio.TaskGroup() as jobs:
                    busy = jobs.create_task(keep_busy(pool))
                    for version, source in ((1, Checkpoint.of(second)), (2, StateDict.of(trained))):
                        before = pool.state.account.tokens
                        await pool.until(lambda before=before: pool.state.account.tokens > before + 100, 120)
                        await publish(pool, sender, version, source)
                        await pool.until(are_at(pool, version, 1), 120)
                    busy.cancel()
                during = await pool.samples("run", at_least=10_000, wait_s=300)
                at_end, held = await given(pool, "at end"), await fingerprints(pool, first)
                assert (await link_of(pool).probe()).model == str(first), "it would not be let in again"
                assert not list(tmp_path.glob("store/*/loading-*"))
            assert pool.state.account.engine_deaths == 0
    async with manager(f"model={third}", *rules[1:]) as pool:
        with joined(pool.url, third, tmp_path):
            await pool.until(are_at(pool, 0, 1), START_S)
            expected, fresh = await given(pool, "fresh"), await fingerprints(pool, third)
    assert held == fresh
    assert at_end == expected != at_start
    assert all(not sample["failure"] and len(sample["token_ids"]) == LENGTH for sample in during)
    assert {span["weight_version"] for sample in during for span in sample["spans"]} == {0, 1, 2}
    assert any(len(sample["spans"]) > 1 for sample in during), "no response went through a change of weights"
