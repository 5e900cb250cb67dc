"""Hundreds of runs in which engines die under requests with images: every token as if none had.

    PYTHONPATH=.venv/vision python benchmarks/pool/image_kills.py [--seeds 500] [--first 0] [--minutes 30]

Two real vLLM servers run (CPU, fp32, a tiny Qwen3-VL with random weights), and one first answers all requests
with nobody in between. Each run is a real manager over HTTP with 8 of these requests, which show one to four
images, and with engines that are doors in front of a server: starting vLLM takes 20 s, so a killed engine is
a door of which all connections break off and whose port is closed, and the next one has no images. Faults are
drawn from the run's seed, each at some token of the run:

    kill    the engine that gives this token dies, and a new one joins
    cut     this token's connection breaks off
    drain   the engine that gives this token leaves in order, and a new one joins
    join    another engine joins

After it every request must have the prompt, the tokens and the end of the undisturbed server, and logprobs
within 1e-4 of it. A seed that fails is printed. Images that an engine is sent again are counted: a
request that shares one with another waits for that only as far as to its first token.
"""

import argparse
import asyncio
import hashlib
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.images import SETTINGS, vllm
from rl_agent.chat.chat import ChatTokenizer
from rl_agent.engine.client import EngineClient
from rl_agent.engine.packed import MISSING, PATH, REQUEST, PackedFrames, PromptImage
from rl_agent.engine.wire import Sampling
from rl_agent.system.flag_parser import FlagParser
from rl_agent.types import Generation
from tests.integration.training.tiny_vision_model import MAX_LENGTH, make_tiny_vision_model
from tests.support.pool_setup import manager

PICTURES, PROMPTS, REQUESTS, TOKENS = 24, 48, 8, 32
WORDS = ("max_broken_attempts=1000", "engine_deaths_limit=1000", "lease_s=5", "stall_timeout_s=30")
FAULTS = ("kill", "kill", "cut", "drain", "join")
RUN_LIMIT_S = 120.0
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Question:
    prompt: list[int]
    images: Sequence[PromptImage]


Answer = tuple[tuple[int, ...], Generation]
"""The prompt as the model saw it, and the response."""


def questions_of(model: Path, folder: Path) -> list[Question]:
    """Return the prompts that all runs draw from; their pictures are noise."""
    drawn, pictures = random.Random(0), list[PromptImage]()
    for _ in range(PICTURES):
        size = (drawn.choice((32, 64)), drawn.choice((32, 64)))
        path = folder / "picture.png"
        Image.frombytes("RGB", size, drawn.randbytes(3 * size[0] * size[1])).save(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        pictures.append(PromptImage(digest, path.rename(folder / f"{digest}.png")))
    chat, questions = ChatTokenizer.load(str(model), {}), list[Question]()
    for number in range(PROMPTS):
        shown = drawn.choices(pictures, k=1 + number % 4)
        parts = [*({"type": "image"} for _ in shown), {"type": "text", "text": "Reach the goal."}]
        prompt = chat.encode_messages([{"role": "user", "content": parts}])
        assert prompt is not None
        questions.append(Question(prompt, shown))
    return questions


async def ask(client: EngineClient, question: Question, name: str) -> Answer:
    sampling = Sampling(0.0, 1.0, -1, 0.0, TOKENS, 0)
    return await client.generate_with_images(
        question.prompt, question.images, sampling, request_id=name, decode=lambda *_: ""
    )


class Door:
    """An engine: a server, behind a port of its own, that has no image at first."""

    def __init__(self, target: str, run: "Run") -> None:
        self._target = target
        self._run = run
        self._images = set[str]()
        self.engine_id = ""
        self.is_dead = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        is_generation = request.method == "POST" and request.path == PATH
        if is_generation and (missing := self._missing(body)):
            return web.json_response({"missing": missing}, status=MISSING)
        headers = {"Content-Type": "application/json"}
        url = self._target + request.path
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            if not is_generation:
                return web.Response(status=answer.status, body=await answer.read())
            return await self._stream(request, answer)

    def _missing(self, body: bytes) -> list[str]:
        """Take the images that were sent; return those that are not here."""
        images = REQUEST.decode(body).images
        sent = {image.digest for image in images if image.content is not None}
        self._run.happened["images sent"] += len(sent)
        self._run.happened["of them again, at once"] += len(sent & self._images)
        self._images |= sent
        return sorted({image.digest for image in images} - self._images)

    async def _stream(self, request: web.BaseRequest, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status)
        await response.prepare(request)
        frames = PackedFrames()
        async for received in answer.content.iter_any():
            for frame in frames.feed(received):
                fault = self._run.fault_at(int.from_bytes(frame[:4], "little"))
                if fault == "cut":
                    self._run.happened[fault] += 1
                    request.transport.abort()
                    return response
                if fault:
                    await self._run.cause(fault, self)
                if self.is_dead:
                    return response
                await response.write(frame)
        return response

    async def die(self) -> None:
        """Break all connections off, and accept no more."""
        self.is_dead = True
        await self._site.stop()
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            server = web.Server(self.handle, handler_cancellation=True, access_log=None)
            self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await self._runner.setup()
            self._site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await self._site.start()
            try:
                yield f"http://127.0.0.1:{self._runner.addresses[0][1]}"
            finally:
                await self._runner.cleanup()


class Run:
    """One manager, its engines, and the faults of a seed."""

    def __init__(self, seed: int, targets: Sequence[str]) -> None:
        self.random = random.Random(seed)
        self._targets = targets
        self.happened: Counter[str] = Counter()
        most = REQUESTS * TOKENS * 3 // 4
        faults = ((self.random.randrange(most), self.random.choice(FAULTS)) for _ in range(6))
        self._faults = sorted(faults, reverse=True)
        self._tokens = 0

    def fault_at(self, tokens: int) -> str:
        """Count the tokens that an engine gives; return the fault that is due with them, if any."""
        self._tokens += tokens
        return self._faults.pop()[1] if self._faults and self._faults[-1][0] < self._tokens else ""

    async def cause(self, fault: str, door: Door) -> None:
        if door.is_dead:
            return
        self.happened[fault] += 1
        if fault == "kill":
            await door.die()
        elif fault == "drain":
            await self._pool.call("POST", f"/engines/{door.engine_id}/drain", {"deadline_s": 0.0})
        self._wanted.put_nowait(1)

    async def _join(self, stack: AsyncExitStack) -> None:
        door = Door(self.random.choice(self._targets), self)
        url = await stack.enter_async_context(door.running())
        door.engine_id = await self._pool.join(url)

    async def _keep_joining(self, stack: AsyncExitStack) -> None:
        while await self._wanted.get():
            await self._join(stack)

    async def play(self, questions: Sequence[Question]) -> dict[int, Answer]:
        """Return the answers to the questions that were drawn, by their numbers."""
        chosen = self.random.sample(range(len(questions)), REQUESTS)
        interval = self.random.choice((1, 4))
        self._wanted = asyncio.Queue[int]()
        async with manager(*WORDS, f"stream_interval={interval}") as self._pool, AsyncExitStack() as stack:
            for _ in range(2):
                await self._join(stack)
            await self._pool.ready(2)
            joining = asyncio.create_task(self._keep_joining(stack))
            try:
                async with EngineClient(self._pool.url, SETTINGS, identify=lambda _: 0) as client:
                    pending = (ask(client, questions[number], f"r{number}") for number in chosen)
                    answers = await asyncio.gather(*pending)
            finally:
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
            return dict(zip(chosen, answers, strict=True))


def differences(ours: Answer, alone: Answer) -> list[str]:
    """Return what differs between an answer and the undisturbed one."""
    (prompt, our_response), (their_prompt, theirs) = ours, alone
    deviations = [] if prompt == their_prompt else ["prompt"]
    wrong = sum(a != b for a, b in zip(our_response.token_ids, theirs.token_ids, strict=False))
    wrong += abs(len(our_response.token_ids) - len(theirs.token_ids))
    deviations += [f"{wrong} tokens"] if wrong else []
    deviations += [] if our_response.finish_reason == theirs.finish_reason else ["end"]
    worst = max(abs(a - b) for a, b in zip(our_response.logprobs, theirs.logprobs, strict=False))
    return deviations + ([f"logprob by {worst:.1e}"] if worst > TOLERANCE else [])


async def measure(options: argparse.Namespace, folder: Path) -> int:
    model = make_tiny_vision_model(folder / "model")
    questions = questions_of(model, folder)
    totals: Counter[str] = Counter()
    wrong: list[int] = []
    async with AsyncExitStack() as stack:
        options.shape, options.model, options.concurrency = "tiny", model, 16
        options.engine_args = "--kv-cache-memory-bytes 67108864"
        logs = [stack.enter_context((folder / f"{name}.log").open("wb")) for name in ("first", "second")]
        servers = (vllm(options, model, MAX_LENGTH, log) for log in logs)
        targets = await asyncio.gather(*map(stack.enter_async_context, servers))
        async with EngineClient(targets[0], SETTINGS, identify=lambda _: 0) as client:
            pending = (ask(client, question, f"a{n}") for n, question in enumerate(questions))
            alone = await asyncio.gather(*pending)
        kinds = {tuple(image.digest for image in question.images) for question in questions}
        assert len({our_response.logprobs for _, our_response in alone}) == len(kinds), (
            "pictures make no difference"
        )
        began = time.monotonic()
        for seed in range(options.first, options.first + options.seeds):
            if time.monotonic() - began > 60 * options.minutes:
                break
            run = Run(seed, targets)
            async with asyncio.timeout(RUN_LIMIT_S):
                answers = await run.play(questions)
            totals += run.happened
            for number, ours in answers.items():
                totals["requests"] += 1
                totals["requests that moved"] += len(ours[1].spans) > 1
                totals["tokens"] += len(ours[1].token_ids)
                if deviations := differences(ours, alone[number]):
                    wrong.append(seed)
                    print(f"seed {seed}, question {number}: {', '.join(deviations)}", flush=True)
            totals["runs"] += 1
            if totals["runs"] % 20 == 0:
                print(f"{totals['runs']} runs in {time.monotonic() - began:.0f} s", flush=True)
    for name, count in sorted(totals.items()):
        print(f"{name:<22} {count:>9,}")
    print(f"{totals['runs']} runs in {time.monotonic() - began:.0f} s, {len(wrong)} answers wrong: {wrong}")
    if options.out is not None:
        options.out.write_text(json.dumps(dict(totals) | {"wrong": wrong}) + "\n")
    return 1 if wrong else 0


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="no run begins later")
    parser.add_argument("--out", type=Path, help="JSON of the counts")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # doors that die under a request
    with tempfile.TemporaryDirectory(prefix="image-kills-") as folder:
        return asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
