"""The pool over real vLLM servers on the CPU: cut, killed and stopped, and the same tokens all the same."""

import asyncio
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.packed import PATH, PackedFrames
from rl_agent.engine.wire import Sampling
from rl_agent.types import Generation
from tests.integration.conftest import started_server
from tests.integration.tiny_model import make_plan
from tests.support.pool_setup import Client, collector, greedy_item, manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]

TOKENS = 160
PROMPTS = [[20 + number, 30, 40 + number % 7, 50] for number in range(24)]
CUTS = 60


GENERATION = ("/v1/completions", PATH)


@dataclass(frozen=True, slots=True)
class Second:
    url: str
    process: "subprocess.Popen[bytes]"


@pytest.fixture(scope="module")
def second(vllm_server, tmp_path_factory):
    """Another server with the same model, which tests may kill."""
    folder = tmp_path_factory.mktemp("second")
    words = [f"engine.port={free_port()}", *vllm_server.plan.command.overrides[1:]]
    plan = make_plan(folder / "run", vllm_server.model, *words)
    with started_server(plan) as process:
        yield Second(plan.config.engine.base_url, process)


class CuttingProxy:
    """Passes on to one engine; cuts a connection after 1 to `most_tokens` tokens, `cuts` times in all.

    An engine may hand over any number of tokens at once.
    """

    def __init__(self, target: str, seed: int, cuts: list[int], *, most_tokens: int = 39) -> None:
        self.target = target
        self.requests: Counter[str] = Counter()
        self.random = random.Random(seed)
        self.cuts = cuts
        self.most_tokens = most_tokens

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.requests[request.path] += 1
        headers = {"Content-Type": "application/json"}
        async with self.session.request(
            request.method, self.target + request.path, data=body or None, headers=headers
        ) as answer:
            if request.path not in GENERATION:
                return web.Response(status=answer.status, body=await answer.read())
            response = web.StreamResponse(status=answer.status)
            await response.prepare(request)
            left = self.random.randint(1, self.most_tokens)
            async for part, tokens in portions(answer, is_packed=request.path == PATH):
                left -= tokens
                if left < 0 and self.cuts:
                    self.cuts.pop()
                    request.transport.abort()
                    return response
                await response.write(part)
            return response

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as self.session:
            server = web.Server(self.handle, handler_cancellation=True, access_log=None)
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()


async def portions(answer: aiohttp.ClientResponse, *, is_packed: bool) -> AsyncIterator[tuple[bytes, int]]:
    """Split what an engine sends into frames or lines, each with its number of tokens."""
    if is_packed:
        frames = PackedFrames()
        async for received in answer.content.iter_any():
            for frame in frames.feed(received):
                yield frame, int.from_bytes(frame[:4], "little")
        return
    async for line in answer.content:
        choices = json.loads(line[6:]).get("choices", ()) if line.startswith(b"data: {") else ()
        yield line, sum(len(choice.get("token_ids") or ()) for choice in choices)


def batch(count: int = len(PROMPTS), **sampling) -> dict:
    items = [greedy_item(f"r{n}", PROMPTS[n % len(PROMPTS)], TOKENS, **sampling) for n in range(count)]
    return {"requests": items}


async def collect(pool: Client, run: str, count: int = len(PROMPTS), **sampling) -> dict[str, dict]:
    status, answer = await pool.call("POST", f"/runs/{run}/requests", batch(count, **sampling))
    assert status == 202, answer
    return await collected(pool, run, count)


async def collected(pool: Client, run: str, count: int = len(PROMPTS)) -> dict[str, dict]:
    samples = await pool.samples(run, at_least=count, wait_s=100)
    assert [sample["failure"] for sample in samples] == [""] * count
    return {sample["id"]: sample for sample in samples}


@pytest.fixture(scope="module")
def uninterrupted(vllm_server):
    """Each prompt's greedy response with its logprobs, from one engine and without a pool."""

    async def ask() -> list[tuple[list[int], list[float]]]:
        async with aiohttp.ClientSession() as session:

            async def response(prompt: list[int]) -> tuple[list[int], list[float]]:
                body = {"model": str(vllm_server.model), "prompt": prompt, "max_tokens": TOKENS}
                body |= {"temperature": 0.0, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
                async with session.post(vllm_server.url + "/v1/completions", json=body) as answer:
                    choice = (await answer.json())["choices"][0]
                    return choice["token_ids"], choice["logprobs"]["token_logprobs"]

            return await asyncio.gather(*map(response, PROMPTS))

    return asyncio.run(ask())


SLOW = ("lease_s=5", "heartbeat_s=1", "stall_timeout_s=20", "rebalance_gain_s=0")


async def test_greedy_responses_are_the_same_after_any_number_of_cuts(vllm_server, second, uninterrupted):
    cuts = [0] * CUTS
    async with (
        manager(*SLOW, "max_broken_attempts=1000", "stream_interval=1") as pool,
        CuttingProxy(vllm_server.url, 1, cuts).running() as first_url,
        CuttingProxy(second.url, 2, cuts).running() as second_url,
    ):
        await pool.join_ready(first_url, second_url)
        samples = await collect(pool, "run")
        assert not cuts, f"{len(cuts)} cuts were left"
        assert sum(sample["moves"] for sample in samples.values()) >= CUTS
        assert pool.state.account.tokens == TOKENS * len(PROMPTS), "a token was sampled twice"
        assert len(pool.state.engines) == 2, "a cut connection is no reason to give an engine up"
    assert_as_alone(samples, uninterrupted)


def assert_as_alone(samples, uninterrupted) -> None:
    """Check that tokens are those of one engine without a pool, and logprobs nearly so."""
    for number, (tokens, logprobs) in enumerate(uninterrupted):
        assert samples[f"r{number}"]["token_ids"] == tokens
        assert samples[f"r{number}"]["logprobs"] == pytest.approx(logprobs, abs=1e-3)


async def test_responses_asked_for_whole_are_those_of_a_stream(vllm_server, uninterrupted):
    words = ("stream_interval=256", "stream_interval_s=1000", "rebalance_interval_s=0.05")
    async with manager(*SLOW, *words) as pool:
        await pool.join_ready(vllm_server.url)
        streamed = await collect(pool, "streamed")
        [engine] = pool.state.engines.values()
        assert engine.request_tokens_per_s > 0, "its speed is known: what fits into a chunk comes whole"
        whole = await collect(pool, "whole")
    assert_as_alone(streamed, uninterrupted)
    assert_as_alone(whole, uninterrupted)
    assert all(sample["text"] == streamed[name]["text"] for name, sample in whole.items())


CHUNK = 32


async def test_leaving_engine_causes_no_tokens_to_be_sampled_again(vllm_server, second, uninterrupted):
    """Responses of an engine with time left end where they are; those that take too long leave at a chunk's
    end.
    """
    urls = (vllm_server.url, second.url)
    words = (f"stream_interval={CHUNK}", "stream_interval_s=1000", "rebalance_interval_s=0.05")
    async with manager(*SLOW, *words) as pool:
        for url in urls:
            await pool.join(url)
        await pool.ready(2)
        await collect(pool, "warm", 3 * len(PROMPTS))
        before = [await sampled(pool, url) for url in urls]
        ended = await drained(pool, second.url, "ended", expected_tokens=TOKENS)
        after = [await sampled(pool, url) for url in urls]
        moves = sum(sample["moves"] for sample in ended.values())
        assert moves <= 2, "a speed that is measured low for a moment may send one away, no more"
        twice = sum(after) - sum(before) - TOKENS * len(PROMPTS)
        assert 0 <= twice <= 4 * moves, "a token was sampled twice"
        await pool.join(second.url)
        await pool.ready(2)
        moved = await drained(pool, second.url, "moved", max_tokens=10**6, expected_tokens=10**6)
        again = sum([await sampled(pool, url) for url in urls]) - sum(after)
        again -= sum(len(sample["token_ids"]) for sample in moved.values())
        print(f"sampled between the end of a chunk and the end of its request: {again} tokens")
    seams = [span["start"] for sample in moved.values() for span in sample["spans"][1:]]
    assert seams and {seam % CHUNK for seam in seams} <= {0, 1}, "it left in the middle of a chunk"
    for number, (tokens, _) in enumerate(uninterrupted):
        assert ended[f"r{number}"]["token_ids"] == tokens == moved[f"r{number}"]["token_ids"][:TOKENS]


async def drained(pool: Client, url: str, run: str, **more) -> dict[str, dict]:
    """Told to leave, with time, as soon as requests are there that have tokens."""
    body = batch()
    body["requests"] = [item | more for item in body["requests"]]
    status, answer = await pool.call("POST", f"/runs/{run}/requests", body)
    assert status == 202, answer
    engine = next(engine for engine in pool.state.engines.values() if engine.offer.name == url)
    has = [pool.state.requests[request_id] for request_id in engine.running]
    await pool.until(lambda: any(len(request.token_ids) > 1 for request in has))
    status, _ = await pool.call("POST", f"/engines/{engine.engine_id}/drain", {"deadline_s": 600})
    assert status == 200
    samples = await collected(pool, run)
    await pool.call("POST", f"/engines/{engine.engine_id}/leave", {"reason": "drained"})
    return samples


async def sampled(pool: Client, url: str) -> int:
    """Tokens that the engine says it has made."""
    async with pool.session.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith("vllm:generation_tokens_total")
    )


def begun_at(pool: Client, url: str, *, needs_text: bool) -> bool:
    """Return whether an engine has sent tokens of a response that it still samples."""
    [engine] = [engine for engine in pool.state.engines.values() if engine.offer.name == url]
    running = [pool.state.requests[request_id] for request_id in engine.running]
    return any(request.token_ids and request.order.needs_text is needs_text for request in running)


REST = (1.0, -1, 0.0, TOKENS, 7)


async def by_tokens(
    url: str, model: Path, sampling: Sampling, *, with_text: bool = False
) -> list[Generation]:
    """Responses to all prompts as the collector asks for them, or as it asks a plain vLLM."""
    chat = ChatTokenizer.load(str(model), {})
    async with collector(url, timeout_s=200) as client:
        client.has_packed_tokens &= not with_text
        calls = [
            client.generate(prompt, sampling, request_id=f"r{number}", decode=chat.decode_after)
            for number, prompt in enumerate(PROMPTS)
        ]
        return await asyncio.gather(*calls)


async def test_a_stopped_engine_loses_nothing(vllm_server, second, uninterrupted):
    async with manager(*SLOW) as pool:
        await pool.join_ready(vllm_server.url, second.url)
        count = 3 * len(PROMPTS)
        await pool.call("POST", "/runs/stopped/requests", batch(count))
        await pool.until(lambda: pool.state.account.tokens > 1000, limit_s=60)
        os.killpg(second.process.pid, signal.SIGSTOP)
        try:
            stopped = await collected(pool, "stopped", count)
        finally:
            os.killpg(second.process.pid, signal.SIGCONT)
        assert len(pool.state.engines) == 1, "a silent engine is gone with its lease"
        account = pool.state.account
        assert account.submitted == account.completed == count
        assert account.tokens == count * TOKENS
    assert_as_uninterrupted(stopped, uninterrupted)


async def test_a_killed_engine_loses_nothing(vllm_server, second, uninterrupted):
    async with manager(*SLOW, "stream_interval=8") as pool, asyncio.TaskGroup() as jobs:
        await pool.join_ready(second.url)
        count = 3 * len(PROMPTS)
        packed = jobs.create_task(by_tokens(pool.url, vllm_server.model, Sampling(0.0, *REST)))
        await pool.call("POST", "/runs/killed/requests", batch(count))
        begun = partial(begun_at, pool, second.url)
        await pool.until(lambda: begun(needs_text=True) and begun(needs_text=False))
        os.killpg(second.process.pid, signal.SIGKILL)
        await pool.join(vllm_server.url)
        killed = await collected(pool, "killed", count)
        await packed
        await pool.until(lambda: len(pool.state.engines) == 1)
        account = pool.state.account
        assert account.submitted == account.completed == count + len(PROMPTS)
        assert account.tokens == count * TOKENS + sum(len(each.token_ids) for each in packed.result())
    for response, (tokens, _) in zip(packed.result(), uninterrupted, strict=True):
        assert list(response.token_ids) == tokens[: len(response.token_ids)]
    assert any(len(response.spans) > 1 for response in packed.result())
    assert_as_uninterrupted(killed, uninterrupted)


def assert_as_uninterrupted(samples, uninterrupted) -> None:
    """Check that requests moved, and that their responses are those of one engine without a pool."""
    assert sum(sample["moves"] for sample in samples.values()) > 0
    for number in range(len(samples)):
        assert samples[f"r{number}"]["token_ids"] == uninterrupted[number % len(PROMPTS)][0]
