"""How fast the page is over many episodes: the index's first build, the first view, searches, memory.

    python benchmarks/page/scale.py --episodes 1000000 --screenshots 100000

A store of that size is written to a temporary folder, the real command `page` is started on it, and asked
over HTTP. Baseline: the same question to the store without an index, as `trajectories list` asks it, over the
first iteration, times the number of iterations.
"""

import argparse
import hashlib
import io
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
from rl_agent.types import EpisodeKey, Generation, Observation, Status, Step, Task, Trajectory

ITERATIONS = 100
CHECKSUM_BYTES = 21
WORDS = [
    "the",
    "agent",
    "opens",
    "a",
    "page",
    "reads",
    "its",
    "price",
    "adds",
    "one",
    "to",
    "the",
    "cart",
    "and",
    "answers",
    "with",
    "what",
    "it",
    "saw",
    "there",
]
QUERIES = {
    "first view, newest 50": "",
    "status and reward": "status=completed&reward_min=0.9",
    "one iteration": "iteration=37",
    "a rare word": "text=needle",
    "a common word": "text=price",
    "two words, a phrase, longest first": "text=price+%22answers+with%22&order=longest",
    "a word that is nowhere": "text=unheardof",
    "page 1,000": "page=1000",
}


def episode(index: int, iteration: int, image: str | None, rng: random.Random) -> Trajectory:
    text = " ".join(rng.choices(WORDS, k=40)) + (" needle" if index % 9973 == 0 else "")
    tokens = tuple(range(60))
    generation = Generation(tokens, tuple(-0.25 for _ in tokens), text, "stop", iteration, iteration)
    return Trajectory(
        key=EpisodeKey(f"task-{index}", 0, 0),
        task=Task(f"task-{index}", "Buy the cheapest one that is in stock.", "web", "easy"),
        split="train",
        iteration=iteration,
        status=Status.COMPLETED if index % 20 else Status.TIMED_OUT,
        steps=(
            Step(Observation("a page", (image,) if image else ()), (1, 2, 3), generation, text, 0.0, True),
        ),
        reward=rng.random() if index % 20 else None,
        system_prompt="",
        model="model",
        weight_version_min=iteration,
        weight_version_max=iteration,
        seed=index,
        started_at=1.7e9 + index,
        duration_s=1.0,
    )


def write_store(paths: RunPaths, episodes: int, screenshots: int) -> None:
    """Write iterations of equally many episodes; lines differ in task, reward, text and image."""
    rng = random.Random(0)
    each, made = episodes // ITERATIONS, 0
    images = write_images(paths, screenshots)
    for iteration in range(1, ITERATIONS + 1):
        shard = paths.shard("train", iteration)
        header = ShardHeader("bench", "train", iteration, 0, "model", iteration, "digest", 1.7e9)
        start_shard(shard, header)
        # Of 256 real lines the task's number is replaced, and the checksum made anew.
        models = [to_line(episode(990000000 + n, iteration, None, rng))[:-CHECKSUM_BYTES] for n in range(256)]
        with shard.open("ab", buffering=1 << 22) as file:
            for n in range(each):
                model = models[n % 256].replace(b"%d" % (990000000 + n % 256), b"%d" % made)
                if images and made % max(1, episodes // screenshots) == 0:
                    model = model.replace(b'"images":[]', b'"images":["%s"]' % images[made % len(images)], 1)
                if made % 9973 == 0:
                    model = model.replace(b'"text":"', b'"text":"needle ', 2)
                file.write(b'%s,"crc32":"%08x"}\n' % (model, zlib.crc32(model)))
                made += 1
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--screenshots", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="page-scale-") as folder:
        paths = RunPaths(Path(folder) / "log")
        paths.trajectory_dir("train").mkdir(parents=True)
        began = time.perf_counter()
        write_store(paths, options.episodes, options.screenshots)
        size = sum(path.stat().st_size for path in paths.trajectory_dir("train").iterdir())
        print(f"{options.episodes:,} episodes, {options.screenshots:,} screenshots, {size / 1e9:.2f} GB")
        print(f"{'written in':40}{time.perf_counter() - began:10.2f} s")
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
    print(f"{'index built, shown as progress, in':40}{time.perf_counter() - began:10.2f} s")
    index = sum(file.stat().st_size for file in paths.page_index.iterdir() if file.is_file())
    print(f"{'size of the index':40}{index / 1e6:10.0f} MB")
    for name, query in QUERIES.items():
        seconds = [ask(f"{url}?{query}&look={n}")[0] for n in range(5)]
        found = ask(f"{url}?{query}")[1].partition('id="total">')[2].partition("<")[0]
        print(f"{name:40}{sorted(seconds)[2]:10.3f} s  (longest {max(seconds):.3f}; {found} found)")
    link = re.search(r'href="(/runs/log/episode\?[^"]*)"', ask(f"{url}?iteration=50")[1])
    assert link is not None, "no episode was found"
    print(f"{'one episode':40}{ask(url.partition('/runs')[0] + unescape(link[1]))[0]:10.3f} s")
    most = max(most, process.memory_info().rss)
    print(f"{'memory of the page, most':40}{most / 2**20:10.0f} MiB")
    began = time.perf_counter()
    count = sum("unheardof" in one.task.prompt for one in find(paths, Filter(iterations=frozenset({1}))))
    seconds = (time.perf_counter() - began) * ITERATIONS
    print(f"{'baseline: reading the store instead':40}{seconds:10.1f} s  ({count} found)")


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
