"""The worker with a simulated engine in a process of its own, against a manager over real HTTP."""

import asyncio
import os
import signal

import aiohttp
import pytest

from rl_agent.errors import ConfigError, StoreError, deliberate
from rl_agent.pool.engines import tunnel_frames
from rl_agent.worker.main import Worker
from tests.integration.pool.workers import engine_pids, settings, worker
from tests.support.pool_setup import are_exact, manager


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


either_way = pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "held connection"])


@either_way
async def test_a_worker_starts_its_engine_serves_and_ends_it(tmp_path, is_direct):
    async with manager() as pool:
        async with worker(pool.url, tmp_path, is_direct=is_direct):
            await pool.ready(1)
            await pool.submit("run", [30] * 20)
            assert are_exact(await pool.samples("run", at_least=20), 30)
        assert not pool.state.engines
        assert pool.state.departed[-1].reason == "left in order"
    assert not any(is_running(pid) for pid in engine_pids(tmp_path))


async def test_engine_is_not_started_on_a_model_that_differs_from_its_digest(tmp_path):
    refused: list[str] = []

    def refuse(model: str) -> None:
        refused.append(model)
        raise StoreError(f"{model}/model.safetensors: differs from what was written")

    async with manager() as pool, worker(pool.url, tmp_path, check_model=refuse):
        await pool.until(lambda: len(refused) == 2)  # it tries again: the file may be put back
    assert refused[0] == "model-a"
    assert not (tmp_path / "engine.log").exists()


@either_way
async def test_a_killed_engine_is_reported_at_once_and_started_again(tmp_path, is_direct):
    async with manager("lease_s=30") as pool:
        async with worker(pool.url, tmp_path, is_direct=is_direct, extra=("--interval", "0.005")):
            await pool.ready(1)
            await pool.submit("run", [300] * 4)
            await pool.until(lambda: pool.state.account.tokens > 100)
            os.killpg(engine_pids(tmp_path)[0], signal.SIGKILL)
            await pool.until(lambda: not pool.state.engines, limit_s=25)
            samples = await pool.samples("run", at_least=4)
        assert pool.state.account.engine_deaths == 1
        assert pool.state.departed[0].reason == "its process ended with signal SIGKILL"
        assert are_exact(samples, 300) and {sample["moves"] for sample in samples} == {1}
        # Nothing was sampled twice: what the first engine made is where the second went on.
        assert pool.state.account.tokens == 4 * 300


async def test_leaving_worker_ends_its_engine_after_its_requests_have_moved(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    more = {"extra": ("--interval", "0.01", "--as-asked"), "drain_s": 15.0}
    async with manager("rebalance_gain_s=0", "stall_timeout_s=10") as pool:
        async with (
            worker(pool.url, tmp_path / "a", name="a", **more) as (leaving, job),
            worker(pool.url, tmp_path / "b", name="b", **more),
        ):
            await pool.ready(2)
            [first] = [engine for engine in pool.state.engines.values() if engine.offer.name == "a"]
            await pool.submit("run", [600] * 4)
            await pool.until(lambda: pool.state.account.tokens > 100)
            requests = [pool.state.requests[request_id] for request_id in first.running]
            had = {request.order.prompt_token_ids[1]: len(request.token_ids) for request in requests}
            leaving.set()
            await job
            samples = await pool.samples("run", at_least=4)
        assert pool.state.account.engine_deaths == 0
    assert len(had) == 2
    assert are_exact(samples, 600)
    for sample in samples:
        left_at = sample["spans"][1]["start"] if sample["moves"] else 600
        assert left_at > had.get(int(sample["id"][1:]), 0), "it left without what its engine was sampling"


async def test_a_hung_engine_is_given_up_though_its_worker_lives(tmp_path):
    async with manager("lease_s=1.0", "heartbeat_s=0.2") as pool, worker(pool.url, tmp_path):
        await pool.ready(1)
        pid = engine_pids(tmp_path)[0]
        os.kill(pid, signal.SIGSTOP)
        await pool.until(lambda: not pool.state.engines)
        os.kill(pid, signal.SIGCONT)
        await pool.ready(1)


@either_way
async def test_engine_too_busy_for_probes_keeps_its_streams_and_gets_no_more(tmp_path, is_direct):
    more = {"is_direct": is_direct, "extra": ("--interval", "0.01", "--deaf-at-work")}
    words = ("lease_s=0.5", "heartbeat_s=0.1", "probe_interval_s=0.1")
    async with manager(*words) as pool, worker(pool.url, tmp_path, **more):
        await pool.ready(1)
        await pool.submit("first", [250] * 4)
        [busy] = pool.state.engines.values()
        await pool.until(lambda: busy.is_doubted)
        assert busy.reason == "no answer to /health within 0.5 s"
        await pool.submit("second", [10])
        await pool.until(lambda: pool.state.account.tokens > 800)
        [waiting] = [request for request in pool.state.requests.values() if request.order.run == "second"]
        assert waiting.state == "queued"
        firsts = await pool.samples("first", at_least=4)
        [second] = await pool.samples("second")
    assert are_exact(firsts, 250) and not any(sample["moves"] for sample in firsts)
    assert min(sample["duration_s"] for sample in firsts) > 4 * 0.5, "it was silent for several leases"
    assert {span["engine_id"] for span in second["spans"]} == {busy.engine_id}
    assert pool.state.account.engine_deaths == 0


async def test_a_manager_that_forgot_the_engine_gets_it_back(tmp_path):
    async with manager() as pool, worker(pool.url, tmp_path, is_direct=False):
        await pool.ready(1)
        first = next(iter(pool.state.engines))
        await pool.call("POST", f"/engines/{first}/leave", {"reason": "a mistake"})
        await pool.ready(1)
        await pool.submit("run", [10])
        assert len(await pool.samples("run")) == 1


async def test_a_worker_starts_its_engine_on_the_model_the_pool_wants(tmp_path):
    async with manager("model=model-a") as pool, worker(pool.url, tmp_path, model=None):
        await pool.ready(1)
        await pool.call("POST", "/model", {"model": "model-b", "weight_version": 1})
        await pool.until(lambda: not list(pool.state.living("ready")))
        await pool.ready(1)
        await pool.submit("run", [10])
        [sample] = await pool.samples("run")
        assert sample["spans"][0]["weight_version"] == 1
        assert len(engine_pids(tmp_path)) == 2


async def test_an_engine_that_does_not_start_is_said_with_the_end_of_its_log(tmp_path):
    async with manager() as pool, aiohttp.ClientSession() as session:
        wrong = settings(pool.url, tmp_path, extra=("--no-such-flag",))
        with pytest.raises(BaseExceptionGroup) as caught:
            await Worker(wrong, session).run(asyncio.Event())
        error = deliberate(caught.value)
        assert isinstance(error, ConfigError) and "--no-such-flag" in str(error)


def test_a_worker_passes_on_no_control_route():
    assert not {"/pause", "/collective_rpc", "/update_weights", "/sleep"} & tunnel_frames.ENGINE_PATHS


def test_frames_survive_the_way():
    opening, body = tunnel_frames.Open(id=3, method="POST", path="/v1/completions"), b'{"a"\n:1}'
    assert tunnel_frames.read_for_worker(tunnel_frames.pack(opening, body)) == (opening, body)
    for garbage in (b"", b"x", b'{"kind": "open"}\n', b'{"kind": "eval", "id": 1}\n'):
        with pytest.raises(ValueError):
            tunnel_frames.read_for_worker(garbage)
