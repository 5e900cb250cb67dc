"""The simulated engine, streaming token ids as vLLM does, and able to go wrong in every way a network can.

    python tests/support/streaming_engine.py --port 0 --interval 0.002

What a response says depends on its prompt and position only (`tests.support.pool_world`), so it must come out
the same however often it was moved. Prompts are (length of the response, seed, filler, filler).
"""

import argparse
import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from aiohttp import web

from rl_agent.weights.load.vllm_names import CLEAR_ADAPTER
from tests.support.pool_world import truth
from tests.support.simulated_engine import Behaviour, SimulatedEngine, serve

PROMPT = 4
CACHES = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/update_weight_version")
FAULTS = ("cut", "garbage", "half an event", "twice", "hang", "close", "500", "429")


class StreamingEngine(SimulatedEngine):
    """`fault_share` of the chunks go wrong, drawn from `seed`.

    `chunk` tokens are sent every `interval_s`; with `does_as_asked`, as many as a request's `stream_interval`
    says, in as much more time. Over a slow link, `piece_bytes` of an event arrive at a time, `piece_s` apart.
    One that `is_deaf_at_work` does not say how it is while it streams. One that `takes_weights` does so by
    vLLM's routes, and prints how many requests it had at each load.
    """

    def __init__(
        self,
        behaviour: Behaviour,
        *,
        interval_s: float = 0.0,
        chunk: int = 1,
        fault_share: float = 0.0,
        seed: int = 0,
        does_as_asked: bool = False,
        piece_bytes: int | None = None,
        piece_s: float = 0.0,
        is_deaf_at_work: bool = False,
        takes_weights: bool = False,
    ) -> None:
        super().__init__(behaviour)
        self.does_as_asked = does_as_asked
        self.piece_bytes = piece_bytes
        self.piece_s = piece_s
        self.is_deaf_at_work = is_deaf_at_work
        self.takes_weights = takes_weights
        self.interval_s = interval_s
        self.chunk = chunk
        self.fault_share = fault_share
        self.random = random.Random(seed)
        self.is_stopped = False
        self.is_asleep = False
        self.sampled = 0
        self.wholes = 0
        """Responses that were asked for without a stream."""
        self.is_continuing_wrongly = False
        self.poison_seed: int | None = None
        self._resumed = asyncio.Event()
        self._going_on = asyncio.Event()
        self._going_on.set()
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.is_stopped:  # as after SIGSTOP: connections stay open, nothing is answered
            await self._resumed.wait()
        if self.is_deaf_at_work and request.path in ("/health", "/metrics"):
            await self._at_rest.wait()
        if request.path in ("/sleep", "/wake_up"):
            self.is_asleep = request.path == "/sleep"
            print("slept" if self.is_asleep else "woke", flush=True)
            return web.Response()
        if self.takes_weights and request.path in ("/pause", "/resume", "/collective_rpc", *CACHES):
            return await self._take_weights(request)
        if request.path == "/openapi.json":
            return web.json_response({"paths": {"/v1/completions": {}}})
        return await super().handle(request)

    async def _take_weights(self, request: web.BaseRequest) -> web.Response:
        if request.path in CACHES:
            return web.json_response({"success": True})
        if request.path == "/pause":
            self._going_on.clear()
        if request.path == "/resume":
            self._going_on.set()
        if request.path != "/collective_rpc":
            return web.Response()
        body = json.loads(await request.read())
        if body["method"] == CLEAR_ADAPTER:
            return web.json_response({"results": [None]})
        _, version, digest, *_ = body["args"]
        print(f"loaded version {version} with {self.running} requests", flush=True)
        return web.json_response({"results": [{"digest": digest, "load_s": 0.0}]})

    def stop(self) -> None:
        self.is_stopped = True
        self._resumed.clear()

    def resume(self) -> None:
        self.is_stopped = False
        self._resumed.set()

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        assert not self.is_asleep
        order = json.loads(await request.read())
        prompt = tuple(order["prompt"])
        whole, count = truth(prompt), len(prompt) - PROMPT
        if list(prompt[PROMPT:]) != whole[:count] or count >= len(whole):
            self.is_continuing_wrongly = True
        fault = self._fault()
        if fault in ("500", "429"):
            return web.json_response({"error": {"message": "simulated"}}, status=int(fault))
        self.running += 1
        self._at_rest.clear()
        try:
            size = order.get("stream_interval", 1) if self.does_as_asked else self.chunk
            rest = whole[count:][: order["max_tokens"]]
            if not order.get("stream"):
                return await self._whole(request, rest, whole, fault)
            return await self._stream(request, rest, whole, size)
        finally:
            self.running -= 1
            if not self.running:
                self._at_rest.set()

    async def _stream(
        self, request: web.BaseRequest, rest: list[int], whole: list[int], size: int
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sent = 0
        while sent < len(rest):
            tokens = rest[sent : sent + size]
            await asyncio.sleep(self.interval_s * len(tokens) / self.chunk)
            await self._going_on.wait()
            if self.is_stopped:
                await self._resumed.wait()
            sent += len(tokens)
            self.sampled += len(tokens)
            is_last = sent == len(rest)
            reason = ("stop" if tokens[-1] == whole[-1] else "length") if is_last else None
            event = b"data: " + json.dumps(self.event_of(tokens, reason, sent)).encode() + b"\n\n"
            await self._send(request, response, event, self._fault())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _whole(
        self, request: web.BaseRequest, rest: list[int], whole: list[int], fault: str
    ) -> web.StreamResponse:
        """All at once, in the time that the chunks would have taken."""
        self.wholes += 1
        await asyncio.sleep(self.interval_s * len(rest) / self.chunk)
        await self._going_on.wait()
        if self.is_stopped:
            await self._resumed.wait()
        self.sampled += len(rest)
        reason = "stop" if rest[-1] == whole[-1] else "length"
        body = json.dumps(self.event_of(rest, reason, len(rest))).encode()
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await self._send(request, response, body, "" if fault == "twice" else fault)
        return response

    def event_of(self, tokens: list[int], finish_reason: str | None, total: int) -> dict[str, Any]:
        """An event of vLLM's `/v1/completions` with usage in every one."""
        logprobs: dict[str, Any] = {"token_logprobs": [logprob_of(token) for token in tokens]}
        logprobs |= {"text_offset": [0] * len(tokens), "tokens": ["x"] * len(tokens)}
        choice: dict[str, Any] = {
            "index": 0,
            "text": "x" * len(tokens),
            "token_ids": tokens,
            "logprobs": logprobs,
        }
        choice |= {"finish_reason": finish_reason, "stop_reason": None}
        return {"id": "cmpl-0", "choices": [choice], "usage": {"completion_tokens": total}}

    def _fault(self) -> str:
        if not self.fault_share or self.random.random() >= self.fault_share:
            return ""
        return self.random.choice(FAULTS)

    async def _send(
        self, request: web.BaseRequest, response: web.StreamResponse, event: bytes, fault: str
    ) -> None:
        assert request.transport is not None
        if fault in ("cut", "garbage", "half an event"):
            if fault != "cut":
                broken = b"data: \xff{{\n\n" if fault == "garbage" else event[: len(event) // 2]
                await response.write(broken)
            request.transport.abort()
            raise ConnectionResetError
        if fault == "close":
            request.transport.close()
            raise ConnectionResetError
        if fault == "hang":
            await asyncio.sleep(3600)
        for _ in range(2 if fault == "twice" else 1):
            size = self.piece_bytes or len(event)
            for start in range(0, len(event), size):
                await response.write(event[start : start + size])
                if self.piece_bytes:
                    await asyncio.sleep(self.piece_s)


def logprob_of(token: int) -> float:
    return -token / 1000


ACCEPT_TICKS = 5
"""Turns of the event loop after which a socket that it has accepted is a connection (asyncio takes three)."""


class Served:
    """An engine in this process: `kill` ends it as SIGKILL would."""

    def __init__(self, engine: StreamingEngine, runner: web.ServerRunner, listening: socket.socket) -> None:
        self.engine = engine
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._runner = runner
        self._listening = listening
        self.is_alive = True

    async def kill(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        server = self._runner.server
        assert server is not None
        # asyncio loses an accepted socket if its server is closed before a connection is made of it.
        asyncio.get_running_loop().remove_reader(self._listening)
        for _ in range(ACCEPT_TICKS):
            await asyncio.sleep(0)
        for handler in list(server.connections):
            if handler.transport is not None:
                handler.transport.abort()
        await self._runner.cleanup()


async def start_engine(engine: StreamingEngine, port: int = 0) -> Served:
    server = web.Server(engine.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=0.05)
    try:
        await runner.setup()
        listening = socket.create_server(("127.0.0.1", port), backlog=1024)
        await web.SockSite(runner, listening, backlog=1024).start()
    except BaseException:
        await runner.cleanup()
        raise
    return Served(engine, runner, listening)


@asynccontextmanager
async def serving(engine: StreamingEngine) -> AsyncIterator[Served]:
    served = await start_engine(engine)
    try:
        yield served
    finally:
        engine.resume()
        await served.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="a simulated engine that streams token ids")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--interval", type=float, default=0.002, help="seconds between chunks")
    parser.add_argument("--root", default="simulated", help="what /v1/models says was loaded")
    parser.add_argument("--chunk", type=int, default=1, help="tokens of a chunk")
    parser.add_argument("--as-asked", action="store_true", help="send as many as stream_interval says")
    parser.add_argument("--deaf-at-work", action="store_true", help="no word to /health while it streams")
    parser.add_argument("--takes-weights", action="store_true", help="as a vLLM does while it runs")
    options = parser.parse_args()

    async def run() -> None:
        engine = StreamingEngine(
            Behaviour(root=options.root),
            interval_s=options.interval,
            chunk=options.chunk,
            does_as_asked=options.as_asked,
            is_deaf_at_work=options.deaf_at_work,
            takes_weights=options.takes_weights,
        )
        await serve(engine, options.port)

    uvloop.run(run())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
