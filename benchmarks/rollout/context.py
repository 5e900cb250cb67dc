"""What an episode with screenshots costs on disk and on the wire: a window against everything.

    python benchmarks/rollout/context.py [--steps 70] [--images 3]

One real episode each, with its record and its kept images: every step shows another screenshot of 1280x768
pixels, of which an engine makes 960 tokens, and is answered by 60 tokens. The engine is a stand-in that
counts the bodies of requests, and of answers the token ids and the text. Requests name images by their paths;
beside that stands what they would add if each request carried them (base64).
"""

import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from rl_agent.agent.context.window import ContextLimits
from rl_agent.engine import wire
from rl_agent.engine.wire import Sampling
from rl_agent.flag_parser import FlagParser
from rl_agent.rollout.collector.conversation import Policy
from rl_agent.rollout.collector.episode import Episode, EpisodeSetup
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.testing.tiny_chat import tiny_chat
from rl_agent.types import EpisodeKey, EpisodeSpec, Generation, Observation, StepResult, Task

SIZE = (1280, 768)
IMAGE_TOKENS, ANSWER_TOKENS = 960, 60
MAX_MODEL_LEN = 32_768
SAMPLING = Sampling(1.0, 1.0, -1, 0.0, 512, 0)
ANSWER = "The list is sorted by price, so the lamp is on the next page.\nclick 412 733"


class Screens:
    """An environment whose page is another at each step."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder = folder
        self._left = steps
        self._random = random.Random(0)

    async def reset(self, task: Task, seed: int) -> Observation:
        return self._look()

    async def step(self, action: str) -> StepResult:
        self._left -= 1
        return StepResult(self._look(), done=not self._left)

    async def close(self) -> None:
        pass

    def _look(self) -> Observation:
        page = Image.new("RGB", SIZE, "white")
        drawing = ImageDraw.Draw(page)
        for row in range(0, SIZE[1], 16):
            words = ("".join(self._random.choices("abcdefghij ", k=150)), "navy" if row % 48 else "black")
            drawing.text((20, row), words[0], words[1])
        path = self._folder / f"{self._left}.png"
        page.save(path)
        return Observation(f"Goal: buy the cheapest lamp\nPage: http://shop.test/{self._left}", (str(path),))


class CountingEngine:
    """Stands in for the client of an engine, and counts what would go over the wire."""

    weight_version = 0

    def __init__(self) -> None:
        self.asked_bytes = self.answered_bytes = self.base64_bytes = 0
        self.longest = 0
        self.fitting = 0

    async def generate_chat(
        self,
        messages: Sequence[dict[str, Any]],
        sampling: Sampling,
        *,
        request_id: str,
        chat_template_kwargs: dict[str, Any],
        decode: Callable[[Sequence[int]], str],
        tools: Sequence[dict[str, Any]] = (),
    ) -> tuple[tuple[int, ...], Generation]:
        body = wire.chat_request("model", messages, sampling, request_id, chat_template_kwargs, tools)
        parts = [part for message in messages for part in _parts(message["content"])]
        images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        text = sum(len(part.get("text", "")) for part in parts) // 4
        prompt = (
            *(151_655 for _ in range(IMAGE_TOKENS * len(images))),
            *(1000 + n % 9000 for n in range(text)),
        )
        generation = Generation(
            tuple(range(5000, 5000 + ANSWER_TOKENS)), (-0.123456789,) * ANSWER_TOKENS, ANSWER, "stop", 0, 0
        )
        answer = {"prompt_token_ids": prompt, "token_ids": generation.token_ids, "text": ANSWER}
        self.asked_bytes += len(body)
        self.answered_bytes += len(json.dumps(answer, separators=(",", ":")))
        self.base64_bytes += sum(map(_base64_bytes, images))
        self.longest = max(self.longest, len(prompt))
        self.fitting += len(prompt) + ANSWER_TOKENS <= MAX_MODEL_LEN
        return prompt, generation


def _base64_bytes(url: str) -> int:
    return 4 * Path(url.removeprefix("file://")).stat().st_size // 3


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


async def measure(kind: ContextLimits, steps: int, folder: Path) -> str:
    """Run one episode; returns its row."""
    engine: Any = CountingEngine()
    policy = Policy(engine, EngineGate(1), tiny_chat(), SAMPLING, limits=kind)
    (folder / "screens").mkdir(parents=True)
    setup = EpisodeSetup(
        split="train",
        iteration=1,
        model="model",
        policy=policy,
        create_environment=lambda _kind, _crashes: Screens(folder / "screens", steps),
        step_timeout_s=60.0,
        episode_timeout_s=600.0,
        images=folder / "images",
    )
    task = Task("lamp", "Buy the cheapest lamp.", "web", "hard")
    spec = EpisodeSpec(EpisodeKey(task.task_id, 0, 0), task, max_steps=steps, seed=0)
    trajectory = await Episode(spec, setup).run()
    assert len(trajectory.steps) == steps
    images = sum(path.stat().st_size for path in (folder / "images").rglob("*.png"))
    sizes = (len(to_line(trajectory)), images, engine.asked_bytes, engine.answered_bytes, engine.base64_bytes)
    columns = "".join(f"{size / 2**20:10.2f}" for size in sizes)
    return f"{columns}{engine.longest:12,}{engine.fitting:9}"


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--images", type=int, default=3)
    options = parser.parse_args()
    everything = ContextLimits(kind="everything")
    window = replace(everything, kind="window", max_images=options.images, max_lines=100)
    print(f"{options.steps} steps; MiB an episode of record, images, requests, answers, base64;")
    print(f"longest prompt in tokens; steps that fit into {MAX_MODEL_LEN:,}\n")
    print("                    record    images  requests   answers    base64     longest      fit")
    with tempfile.TemporaryDirectory() as name:
        for kind in (everything, window):
            row = asyncio.run(measure(kind, options.steps, Path(name) / kind.kind))
            print(f"{kind.kind:16}{row}", flush=True)


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
