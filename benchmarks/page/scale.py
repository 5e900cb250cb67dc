"""Measures the page over many episodes: the index's first build, the first view, searches, memory.

    python benchmarks/page/scale.py --episodes 1000000 --screenshots 100000
    python benchmarks/page/scale.py --episodes 100000 --turns 6 --characters 1500 --tokens 400

A store of that size is written to a temporary folder, the real command `page` is started on it, and asked
over HTTP. Baseline: the same question to the store without an index, as `trajectories list` asks it, over the
first iteration, times the number of iterations. Words follow Zipf's law in 2,000 texts; each episode
has a word of its own. With `--folder` the store and its index stay for another call.
"""

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from html import unescape
from pathlib import Path

import psutil
from PIL import Image

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.browse import Filter, find
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.shard import ShardHeader, start_shard
from rl_agent.system.flag_parser import FlagParser
from rl_agent.types import EpisodeKey, Generation, Observation, Status, Step, Task, Trajectory

ITERATIONS = 100
CHECKSUM_BYTES = 21
MODELS = 2000
VOCABULARY = 60_000
COMMON = ["the", "price", "and", "answers", "with", "page", "agent", "reads", "cart", "one"]
QUERIES = {
    "first view, newest 50": "",
    "status and reward": "status=completed&reward_min=0.9",
    "one iteration": "iteration=37",
    "a rare word": "text=needle",
    "a common word": "text=price",
    "two words, a phrase, longest first": "text=price+%22answers+with%22&order=longest",
    "beginnings of words": "text=pric*+nee*",
    "the commonest phrase": "text=%22the+price%22",
    "a word of one episode": "text=own77777",
    "a word and an iteration": "text=price&iteration=37",
    "a word that is nowhere": "text=unheardof",
    "page 1,000": "page=1000",
}


class Writer:
    """Writes texts in which the n-th commonest word comes n times more seldom than the first."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        letters = "abcdefghijklmnopqrstuvwxyz"
        written = (
            "".join(self._random.choices(letters, k=self._random.randint(3, 10))) for _ in range(VOCABULARY)
        )
        self._words = [*COMMON, *written]
        self._weights = list(itertools.accumulate(1 / rank for rank in range(1, len(self._words) + 1)))

    def text(self, characters: int) -> str:
        words = self._random.choices(self._words, cum_weights=self._weights, k=characters // 6 + 1)
        return " ".join(words)[:characters]


def episode(index: int, writer: Writer, options: argparse.Namespace) -> Trajectory:
    tokens = tuple(range(1000, 1000 + options.tokens))
    rng = random.Random(index)
    steps = []
    for turn in range(options.turns):
        text = writer.text(options.characters)
        logprobs = tuple(-rng.random() for _ in tokens)
        generation = Generation(tokens, logprobs, text, "stop", 1, 1)
        prompt = tuple(range(options.tokens // 4))
        steps.append(Step(Observation(f"page {turn}"), prompt, generation, text, 0.0, True))
    return Trajectory(
        key=EpisodeKey(f"task-{index}", 0, 0),
        task=Task(f"task-{index}", f"Buy the cheapest one that is in stock. own{index}", "web", "easy"),
        split="train",
        iteration=1,
        status=Status.COMPLETED if index % 20 else Status.TIMED_OUT,
        steps=tuple(steps),
        reward=rng.random() if index % 20 else None,
        system_prompt="",
        model="model",
        weight_version_min=1,
        weight_version_max=1,
        seed=index,
        started_at=1.7e9,
        duration_s=1.0,
    )


def write_store(paths: RunPaths, options: argparse.Namespace) -> None:
    """Write iterations of equally many episodes; lines differ in task, reward, text and image."""
    each, written = options.episodes // ITERATIONS, 0
    images = write_images(paths, options.screenshots)
    writer, first = Writer(), 990_000_000
    # Of real lines the task's number is replaced, and the checksum made anew.
    models = [to_line(episode(first + n, writer, options))[:-CHECKSUM_BYTES] for n in range(MODELS)]
    for iteration in range(1, ITERATIONS + 1):
        shard = paths.shard("train", iteration)
        header = ShardHeader("bench", "train", iteration, 0, "model", iteration, "digest", 1.7e9)
        start_shard(shard, header)
        with shard.open("ab", buffering=1 << 22) as file:
            for _ in range(each):
                model = models[written % MODELS].replace(b"%d" % (first + written % MODELS), b"%d" % written)
                if images and written % max(1, options.episodes // options.screenshots) == 0:
                    model = model.replace(
                        b'"images":[]', b'"images":["%s"]' % images[written % len(images)], 1
                    )
                if written % 9973 == 0:
                    model = model.replace(b'"text":"', b'"text":"needle ', 2)
                file.write(b'%s,"crc32":"%08x"}\n' % (model, zlib.crc32(model)))
                written += 1
        entry = {"file": shard.name, "rank": 0, "bytes": None, "episodes": each}
        paths.manifest("train", iteration).write_text(json.dumps([entry]))


def write_images(paths: RunPaths, count: int) -> list[bytes]:
    content = io.BytesIO()
    Image.new("RGB", (64, 48), "white").save(content, "PNG")
    names = []
    for n in range(count):
        body = content.getvalue() + b"%d" % n
        target = paths.images / (digest := hashlib.sha256(body).hexdigest())[:2] / f"{digest}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
        names.append(str(target).encode())
    return names


def ask(url: str) -> tuple[float, str]:
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=600) as answer:
        text = answer.read().decode()
    return time.perf_counter() - began, text


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--screenshots", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--characters", type=int, default=250, help="of each response")
    parser.add_argument("--tokens", type=int, default=60, help="of each response")
    parser.add_argument("--folder", help="keeps the store and its index")
    options = parser.parse_args()
    with contextlib.ExitStack() as held:
        folder = options.folder or held.enter_context(tempfile.TemporaryDirectory(prefix="page-scale-"))
        paths = RunPaths(Path(folder) / "log")
        began = time.perf_counter()
        if not paths.trajectory_dir("train").exists():
            paths.trajectory_dir("train").mkdir(parents=True)
            write_store(paths, options)
        size = sum(path.stat().st_size for path in paths.trajectory_dir("train").iterdir())
        print(f"{options.episodes:,} episodes, {options.screenshots:,} screenshots, {size / 1e9:.2f} GB")
        print(f"{'written in':40}{time.perf_counter() - began:10.2f} s", flush=True)
        words = [
            sys.executable,
            "-m",
            "rl_agent.cli",
            "page",
            "--log-path",
            str(paths.log_path),
            "--port",
            "0",
        ]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as page:
            try:
                measure(page, paths)
            finally:
                page.terminate()


def measure(page: "subprocess.Popen[str]", paths: RunPaths) -> None:
    assert page.stdout is not None
    url = page.stdout.readline().split()[-1] + "/runs/log/episodes"
    process = psutil.Process(page.pid)
    began, look, most = time.perf_counter(), 0, 0
    while "<progress" in ask(f"{url}?look={(look := look + 1)}")[1]:
        most = max(most, process.memory_info().rss)
        time.sleep(0.5)
    most_of_build = most
    print(f"{'index built, shown as progress, in':40}{time.perf_counter() - began:10.2f} s")
    index = sum(file.stat().st_size for file in paths.page_index.iterdir() if file.is_file())
    print(f"{'size of the index':40}{index / 1e6:10.0f} MB", flush=True)
    for name, query in QUERIES.items():
        seconds = [ask(f"{url}?{query}&look={n}")[0] for n in range(5)]
        html = ask(f"{url}?{query}")[1]
        total = html.partition('id="total">')[2].partition("<")[0]
        print(
            f"{name:40}{sorted(seconds)[2]:10.3f} s  (longest {max(seconds):.3f}; {total} found)", flush=True
        )
    link = re.search(r'href="(/runs/log/episode\?[^"]*)"', ask(f"{url}?iteration=50")[1])
    assert link is not None, "no episode was found"
    print(f"{'one episode':40}{ask(url.partition('/runs')[0] + unescape(link[1]))[0]:10.3f} s")
    most = max(most, process.memory_info().rss)
    print(f"{'memory of the page, most':40}{most / 2**20:10.0f} MiB  (building {most_of_build / 2**20:.0f})")
    began = time.perf_counter()
    count = sum("unheardof" in match.task.prompt for match in find(paths, Filter(iterations=frozenset({1}))))
    seconds = (time.perf_counter() - began) * ITERATIONS
    print(f"{'baseline: reading the store instead':40}{seconds:10.1f} s  ({count} found)")


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
