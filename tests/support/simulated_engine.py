"""An inference server that speaks vLLM's HTTP and thinks nothing: for scale and chaos, never for learning.

    python tests/support/simulated_engine.py --port 0 --tokens 16 --latency lognormal:0.05,0.5

Prints its port on the first line of stdout. Responses are the same few tokens over and over; how long one
takes, and whether it fails, is drawn from the request's own seed, so that two collectors that send the same
requests meet the same engine. At most `max-num-seqs` requests run, the others wait in order.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop
from aiohttp import web

EOS_TOKEN_ID = 2
FIRST_TOKEN_ID = 18  # "0" to the tokenizer of `tests.support.tiny_chat`


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The way that the server answers."""

    tokens: int = 8
    """Tokens of a response, the end of turn included."""
    latency: str = "constant:0"
    """Seconds of a response: `constant:S`, `lognormal:MEDIAN,SIGMA` or `pareto:MINIMUM,ALPHA`."""
    latency_until: str = ""
    """The file whose arrival ends the latency."""
    max_num_seqs: int = 256
    max_model_len: int = 32768
    root: str = "simulated"
    failure_share: float = 0.0
    """Requests answered with HTTP 500."""
    cut_share: float = 0.0
    """Requests whose connection is closed without an answer."""
    hang_share: float = 0.0
    """Requests that are never answered."""


def draw_latency(latency: str, random_: random.Random) -> float:
    """Seconds, from a distribution written as in `Behaviour.latency`."""
    kind, _, numbers = latency.partition(":")
    first, *rest = (float(number) for number in numbers.split(","))
    if kind == "constant":
        return first
    if kind == "lognormal":
        return first * random_.lognormvariate(0.0, rest[0])
    if kind == "pareto":
        return first * random_.paretovariate(rest[0])
    raise ValueError(f"no distribution {kind!r}; there are constant, lognormal, pareto")


class SimulatedEngine:
    """The state of the server; `handle` answers one request."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.running = 0
        self.waiting = 0
        self.served = 0
        self.aborted = 0
        self.busy_s = 0.0
        self._busy_since = 0.0
        self._places = asyncio.Semaphore(behaviour.max_num_seqs)
        self._is_instant = behaviour.latency == "constant:0"
        self._is_perfect = not (behaviour.failure_share or behaviour.cut_share or behaviour.hang_share)
        self._answers: dict[int, bytes] = {}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/v1/completions":
            return await self._complete(request)
        if request.path == "/v1/models":
            card: dict[str, object] = {"id": "simulated", "root": self.behaviour.root, "object": "model"}
            card["max_model_len"] = self.behaviour.max_model_len
            return web.json_response({"object": "list", "data": [card]})
        if request.path == "/metrics":
            return web.Response(text=self._metrics())
        return web.Response(status=200 if request.path == "/health" else 404)

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        order = json.loads(await request.read())
        random_ = random.Random(order["seed"])
        if not self._is_perfect and (trouble := await self._trouble(request, random_)):
            return trouble
        try:
            if not self._is_instant:
                await self._think(random_)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        self.served += 1
        tokens = min(self.behaviour.tokens, order["max_tokens"])
        return web.Response(body=self._answer(tokens), content_type="application/json")

    async def _trouble(self, request: web.BaseRequest, random_: random.Random) -> web.Response | None:
        # A retry of the same request meets new luck, or no retry could ever succeed.
        draw, behaviour = random.random(), self.behaviour
        if draw < behaviour.failure_share:
            return web.json_response({"error": {"message": "simulated failure"}}, status=500)
        draw -= behaviour.failure_share
        if draw < behaviour.cut_share:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if draw - behaviour.cut_share < behaviour.hang_share:
            await asyncio.Event().wait()
        return None

    async def _think(self, random_: random.Random) -> None:
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        if self.running == 0:
            self._busy_since = time.monotonic()
        self.running += 1
        try:
            await asyncio.sleep(self._latency_s(random_))
        finally:
            self.running -= 1
            if self.running == 0:
                self.busy_s += time.monotonic() - self._busy_since
            self._places.release()

    def _latency_s(self, random_: random.Random) -> float:
        until = self.behaviour.latency_until
        return 0.0 if until and Path(until).exists() else draw_latency(self.behaviour.latency, random_)

    def _answer(self, tokens: int) -> bytes:
        if tokens not in self._answers:
            self._answers[tokens] = json.dumps(completion(tokens, self.behaviour.tokens)).encode()
        return self._answers[tokens]

    def _metrics(self) -> str:
        busy_s = self.busy_s + (time.monotonic() - self._busy_since if self.running else 0.0)
        label = '{engine="0",model_name="simulated"}'
        return (
            f"vllm:num_requests_running{label} {float(self.running)}\n"
            f"vllm:num_requests_waiting{label} {float(self.waiting)}\n"
            f"simulated:served {self.served}\nsimulated:aborted {self.aborted}\nsimulated:busy_s {busy_s}\n"
        )


def completion(tokens: int, length: int) -> dict[str, object]:
    """A response of vLLM 0.28 to `return_token_ids`, `logprobs: 0`; cut off if fewer tokens than `length`."""
    is_whole = tokens == length
    token_ids = [FIRST_TOKEN_ID + index % 10 for index in range(tokens - is_whole)]
    token_ids += [EOS_TOKEN_ID] * is_whole
    logprobs = [-0.5 - index / 64 for index in range(tokens)]
    names = [f"token_id:{token_id}" for token_id in token_ids]
    choice = {
        "index": 0,
        "text": "0123456789"[: tokens - is_whole],
        "token_ids": token_ids,
        "logprobs": {
            "text_offset": list(range(tokens)),
            "token_logprobs": logprobs,
            "tokens": names,
            "top_logprobs": [{name: value} for name, value in zip(names, logprobs, strict=True)],
        },
        "finish_reason": "stop" if is_whole else "length",
        "stop_reason": None,
        "prompt_logprobs": None,
    }
    return {"id": "cmpl-0", "object": "text_completion", "model": "simulated", "choices": [choice]}


async def serve(engine: SimulatedEngine, port: int) -> None:
    """Answer on loopback until SIGTERM or SIGINT; the port is the first line of stdout."""
    server = web.Server(engine.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
    await site.start()
    print(f"{runner.addresses[0][1]}\npid {os.getpid()}", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--latency", default="constant:0")
    parser.add_argument("--latency-until", default="", help="a file: no latency once it is there")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--root", default="simulated", help="what /v1/models says was loaded")
    parser.add_argument("--failure-share", type=float, default=0.0)
    parser.add_argument("--cut-share", type=float, default=0.0)
    parser.add_argument("--hang-share", type=float, default=0.0)
    options = vars(parser.parse_args())
    port = options.pop("port")

    async def run() -> None:
        await serve(SimulatedEngine(Behaviour(**options)), port)

    uvloop.run(run())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
