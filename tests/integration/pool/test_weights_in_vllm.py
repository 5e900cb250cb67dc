"""A pool of two real engines takes versions of a model that is trained, while requests run through it."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import psutil
import pytest

from rl_agent.pool.engines.link import EngineLink, HttpTransport
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.pairs.pairs import Pairing
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.tensor_sources import Checkpoint
from rl_agent.weights.transports import PieceTransport
from rl_agent.worker import weight_cache
from rl_agent.worker.engine_process import EngineCommand
from rl_agent.worker.main import Worker
from tests.integration.pool.publishing import announce, are_at
from tests.integration.pool.workers import settings
from tests.integration.tiny_model import make_tiny_model
from tests.integration.weights.fingerprints import EXTENSION, fingerprints
from tests.integration.weights.test_vllm import complete_all, server, train_step
from tests.support.gloo_pairs import GlooPairs
from tests.support.pool_setup import greedy_item, manager
from tests.support.weight_pairs import WatchedPairs
from tests.support.weight_transfers import SERVER, StateDict, host
from tests.unit.weights.weight_versions import open_store
from tests.unit.weights.weight_versions import settings as publishing

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]

FLAGS = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8"),
    *("--no-enable-chunked-prefill", "--kv-cache-memory-bytes", "67108864"),
    *("--distributed-executor-backend", "uni"),
)
ON_CPU = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_WAIT_POLICY": "PASSIVE"}
LIMIT_S = 400
LENGTH = 200


def worker_settings(pool_url, folder, name):
    (folder / name).mkdir()
    flags = (*FLAGS, "--worker-extension-cls", EXTENSION)
    command = EngineCommand("vllm", "127.0.0.1", None, flags, os.environ | ON_CPU, loads_weights=True)
    more = {"model": None, "capacity": 8, "manager_timeout_s": 60.0, "start_timeout_s": 300.0}
    return settings(pool_url, folder / name, name=name, command=command, **more)


@asynccontextmanager
async def two_workers(pool_url, folder):
    leaving = asyncio.Event()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
        for name in ("a", "b"):
            jobs.create_task(Worker(worker_settings(pool_url, folder, name), session).run(leaving))
        try:
            yield
        finally:
            leaving.set()


async def publish(pool, sender, version, source, **more):
    snapshot = await asyncio.to_thread(Publisher(sender.store, publishing()).publish, version, source)
    await announce(pool, sender, snapshot, **more)


async def kill_one_that_fetches(pool, pid_of):
    fetching = [engine.offer.name for engine in pool.state.engines.values() if engine.weights.is_fetching]
    os.killpg(pid_of(fetching[0]), signal.SIGKILL)


async def keep_busy(pool):
    """Two requests for every place, until cancelled."""
    for start in range(0, 100_000, 16):
        numbers = range(start, start + 16)
        items = [greedy_item(f"r{number}", [5 + number % 80, 6, 7], LENGTH) for number in numbers]
        await pool.call("POST", "/runs/run/requests", {"requests": items})
        await pool.until(lambda: pool.runtime.pool.open_requests() < 16, LIMIT_S)


async def run_through(pool, sender, states, pid_of):
    """Two versions under load, one engine killed in the middle of the second; the samples."""
    async with asyncio.TaskGroup() as jobs:
        busy = jobs.create_task(keep_busy(pool))
        await pool.until(lambda: pool.state.account.tokens > 100, LIMIT_S)
        await publish(pool, sender, 1, states[0])
        await pool.until(are_at(pool, 1), LIMIT_S)
        await publish(pool, sender, 2, states[1])
        await pool.until(lambda: any(e.weights.is_fetching for e in pool.state.engines.values()), LIMIT_S)
        await kill_one_that_fetches(pool, pid_of)
        await pool.until(are_at(pool, 2), LIMIT_S)
        busy.cancel()
    return await pool.samples("run", at_least=10_000, wait_s=LIMIT_S)


@pytest.mark.parametrize("by_pairs", [False, True], ids=["tcp", "pairs"])
async def test_weights_are_exact_after_a_sender_dies_in_mid_transfer(tmp_path, monkeypatch, by_pairs):
    first = make_tiny_model(tmp_path / "first", hidden_size=128)
    second, third = tmp_path / "second", tmp_path / "third"
    train_step(first, second)
    trained = train_step(second, third)
    slow = replace(SERVER, bytes_per_s=4e5)
    pairs = WatchedPairs() if by_pairs else None
    if by_pairs:
        monkeypatch.setattr(
            weight_cache, "open_transport", lambda *_: PieceTransport(pairing=Pairing(GlooPairs()))
        )

    def pid_of(name):
        [engine] = [e for e in pool.state.engines.values() if e.offer.name == name]
        return leader_at(pool.runtime.pool.links[engine.engine_id].link._transport._url.port)

    with host(open_store(tmp_path / "trainer"), server=slow, pairs=pairs) as sender:
        async with manager(f"model={first}", "lease_s=20", "stall_timeout_s=120") as pool:
            async with two_workers(pool.url, tmp_path):
                await pool.until(are_at(pool, 0), LIMIT_S)
                samples = await run_through(
                    pool, sender, [Checkpoint.of(second), StateDict.of(trained)], pid_of
                )
                urls = [str(reached.link._transport._url) for reached in pool.runtime.pool.links.values()]
                held = [await asyncio.to_thread(asyncio.run, fingerprints(url)) for url in urls]
                given = await asyncio.to_thread(asyncio.run, complete_all(pool.url))
            deaths = pool.state.account.engine_deaths
    with server(third, tmp_path / "log-third") as url:
        expected = await asyncio.to_thread(asyncio.run, complete_all(url))
        fresh = await asyncio.to_thread(asyncio.run, fingerprints(url))
    assert held == [fresh, fresh]
    assert pairs is None or pairs.moved_bytes > 0.9 * sender.server.sent_bytes
    assert given == expected
    assert deaths == 1
    assert all(sample["is_completed"] and len(sample["token_ids"]) == LENGTH for sample in samples)
    versions = {span["weight_version"] for sample in samples for span in sample["spans"]}
    assert versions == {0, 1, 2}
    assert any(len(sample["spans"]) > 1 for sample in samples), "no response went through a change of weights"


async def play(pool, number, spans):
    """An episode of three turns, with a pause between them, as its environment would make."""
    context = [5 + number, 6, 7]
    for _ in range(3):
        ask = {"prompt": context, "max_tokens": 40, "ignore_eos": True, "temperature": 0.0}
        ask |= {"return_token_ids": True, "episode": f"e{number}"}
        status, answer = await pool.call("POST", "/v1/completions", ask)
        assert status == 200, answer
        [choice] = answer["choices"]
        context = [*context, *choice["token_ids"]]
        spans.setdefault(number, set()).update(span["weight_version"] for span in choice["weight_versions"])
        await asyncio.sleep(0.3)
    assert (await pool.call("DELETE", f"/episodes/e{number}"))[0] == 200


async def test_engines_that_finish_first_mix_no_versions_and_lose_no_request(tmp_path, monkeypatch):
    """Single responses and episodes of several turns, while two versions are published."""
    first = make_tiny_model(tmp_path / "first", hidden_size=128)
    second, third = tmp_path / "second", tmp_path / "third"
    train_step(first, second)
    train_step(second, third)
    at_loads, episodes = [], {}
    load = VllmServer.load

    async def watched(server, *arguments, **named):
        at_loads.append(await EngineLink(HttpTransport(server._session, server._url)).load())
        return await load(server, *arguments, **named)

    monkeypatch.setattr(VllmServer, "load", watched)
    with host(open_store(tmp_path / "trainer")) as sender:
        async with (
            manager(f"model={first}", "lease_s=20", "stall_timeout_s=120") as pool,
            two_workers(pool.url, tmp_path),
        ):
            await pool.until(are_at(pool, 0), LIMIT_S)
            async with asyncio.TaskGroup() as jobs:
                busy = jobs.create_task(keep_busy(pool))
                playing = []
                for version, source in ((1, second), (2, third)):
                    tokens = pool.state.account.tokens
                    await pool.until(lambda tokens=tokens: pool.state.account.tokens > tokens + 400, LIMIT_S)
                    playing += [jobs.create_task(play(pool, 4 * version + n, episodes)) for n in range(4)]
                    await pool.until(lambda: pool.state.episodes, LIMIT_S)
                    await publish(
                        pool, sender, version, Checkpoint.of(source), useful_from=0, finish_within_s=300
                    )
                    await pool.until(are_at(pool, version), LIMIT_S)
                await asyncio.wait(playing)
                busy.cancel()
            samples = await pool.samples("run", at_least=10_000, wait_s=LIMIT_S)
            _, status = await pool.call("GET", "/status")
    assert [(load.running, load.waiting) for load in at_loads] == [(0, 0)] * 4
    assert all(sample["is_completed"] and len(sample["token_ids"]) == LENGTH for sample in samples)
    versions = [{span["weight_version"] for span in sample["spans"]} for sample in samples]
    assert all(len(each) == 1 for each in versions) and set().union(*versions) == {0, 1, 2}
    assert len(episodes) == 8 and all(len(each) == 1 for each in episodes.values())
    assert status["totals"]["finishing_s"] > 0 and status["totals"]["recomputed_tokens"] == 0


def leader_at(port):
    """The engine that was started at `port`; it leads its group."""
    for pid in psutil.pids():
        try:
            words = psutil.Process(pid).cmdline()
        except psutil.Error:
            continue
        if "rl_agent.engine.vllm_serve" in words and str(port) in words and os.getpgid(pid) == pid:
            return pid
    raise AssertionError(f"no engine was started at port {port}")
