"""A judge that drips, floods or answers what is none costs an outage, in bounded time and memory."""

import asyncio
import gzip
import json
import resource
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer as LocalServer

from rl_agent.errors import JudgeOutage
from rl_agent.judge import judge as judge_module
from rl_agent.judge.judge import ModelJudge
from tests.unit.judge.judge_api import APPROVES, completion, config, trajectory

TOO_MUCH = 64 << 20


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")


class Liar:
    def __init__(self, kind):
        self.kind = kind
        self.sent = 0

    async def answer(self, request):
        await request.read()
        if self.kind == "bomb":
            packed = gzip.compress(json.dumps(completion("a" * TOO_MUCH)).encode())
            return web.Response(
                body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
            )
        part = b"a" * 65536 if self.kind == "floods" else b" "
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        while self.sent < 4 * TOO_MUCH:
            await stream.write(part)
            self.sent += len(part)
            if self.kind == "drips":
                await asyncio.sleep(0.05)
        return stream


@asynccontextmanager
async def judge_of(kind, tmp_path, monkeypatch):
    app, liar = web.Application(), Liar(kind)
    app.router.add_post("/v1/chat/completions", liar.answer)
    async with LocalServer(app) as server:
        settings = config(base_url=str(server.make_url("/v1")), timeout_s=0.3, max_retries=0)
        monkeypatch.setattr(judge_module, "_LONGEST_PAUSE_S", 0.2)
        async with ModelJudge(settings, tmp_path / "cache") as judge:
            yield judge, liar


@pytest.mark.parametrize("kind", ["drips", "floods", "bomb"])
async def test_an_answer_without_end_is_an_outage(tmp_path, kind, monkeypatch):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with judge_of(kind, tmp_path, monkeypatch) as (judge, liar), asyncio.timeout(20):
        with pytest.raises(JudgeOutage) as outage:
            await judge(trajectory())

    assert "\n" not in str(outage.value)
    assert liar.sent < TOO_MUCH
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 300 << 10


@pytest.mark.parametrize("content", [["PASS"], {"verdict": "PASS"}, 1, True, [{"text": APPROVES}]])
async def test_a_content_that_is_no_text_is_an_outage(tmp_path, content):
    async def answer(request):
        return web.json_response(completion(content))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with LocalServer(app) as server:
        settings = config(base_url=str(server.make_url("/v1")), max_retries=0)
        async with ModelJudge(settings, tmp_path / "cache") as judge:
            with pytest.raises(JudgeOutage):
                await judge(trajectory())
