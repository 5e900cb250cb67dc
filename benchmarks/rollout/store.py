"""Cost of recording an episode as a run grows, against rewriting the whole file now and then.

    python benchmarks/rollout/store.py [--max-episodes 100000] [--steps 1] [--folder DIR]

Append: one line an episode, group commit with fsync; `--concurrency` episodes end at the same time.
Rewrite: a checkpoint that loads and rewrites all episodes recorded so far (one pickle file, as torch.save
would write it), fsync included: at every 25 % of the rollout, where a crash loses up to a quarter of it, and
after every 100 episodes. Resume: the time until an interrupted rollout knows what it has.
"""

import argparse
import asyncio
import os
import pickle
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_agent.flag_parser import FlagParser
from rl_agent.paths import RunPaths
from rl_agent.rollout.collector.metrics import RolloutMetrics
from rl_agent.rollout.sample import Ledger, Sample
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import Part, read_parts
from rl_agent.rollout.trajectories.shard import ShardHeader
from rl_agent.rollout.trajectories.store import ShardWriter
from rl_agent.types import EpisodeKey, EpisodeSpec, Generation, Observation, Status, Step, Task, Trajectory

EVERY = 100
"""Episodes between two rewrites of the finer baseline."""
DISTINCT = 10_000
"""Episodes of a larger run share their steps, so that the benchmark's own memory stays small."""
SIZES = (100, 1_000, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way of recording cost."""

    seconds: float
    written_bytes: int


def trajectory(index: int, steps: tuple[Step, ...]) -> Trajectory:
    """An episode like the quickstart's: about 3 kB a step."""
    return Trajectory(
        key=EpisodeKey(f"sum-{index:07d}", 0, 0),
        task=Task(f"sum-{index:07d}", "What is 17 + 25?", "reasoning_gym", "easy", answer="42"),
        split="train",
        iteration=1,
        status=Status.COMPLETED,
        steps=steps,
        reward=float(index % 2),
        system_prompt="",
        model="base",
        weight_version_min=0,
        weight_version_max=0,
        seed=index,
        started_at=1.7e9,
        duration_s=1.5,
    )


def _step(rng: random.Random) -> Step:
    tokens = tuple(rng.randrange(150_000) for _ in range(100))
    logprobs = tuple(-rng.random() for _ in tokens)
    generation = Generation(tokens, logprobs, "The answer is 42. " * 10, "stop", 0, 0, 0.01, 1.2)
    return Step(Observation("What is 17 + 25?"), tokens[:40], generation, "42", 1.0, changed=True)


def header() -> ShardHeader:
    return ShardHeader("run", "train", 1, 0, "base", 0, "digest", time.time())


async def append_all(folder: Path, episodes: Sequence[Trajectory], concurrency: int) -> Cost:
    """Time from the first append until the last one is durable."""
    growing = RunPaths(folder).checkpoint_shard("train", 1)
    async with ShardWriter.create(growing, header()) as writer:
        start = time.perf_counter()

        async def worker(first: int) -> None:
            for index in range(first, len(episodes), concurrency):
                await writer.append(episodes[index])

        async with asyncio.TaskGroup() as group:
            for first in range(min(concurrency, len(episodes))):
                group.create_task(worker(first))
        seconds = time.perf_counter() - start
    return Cost(seconds, growing.stat().st_size)


async def resume(folder: Path, episodes: Sequence[Trajectory]) -> tuple[float, int]:
    """Time until it is known what is recorded and what it adds up to, and the file can be appended to."""
    paths = RunPaths(folder)
    ledger = Ledger(Sample([EpisodeSpec(one.key, one.task, max_steps=1, seed=0) for one in episodes]))
    metrics = RolloutMetrics("train", success_reward=1.0)
    start = time.perf_counter()
    for found in read_parts([Part(paths.shard("train", 1))], TRAJECTORY):
        ledger.record(found.key)
        metrics.add(found)
    async with ShardWriter.resume(paths.checkpoint_shard("train", 1)):
        return time.perf_counter() - start, len(episodes) - len(ledger.missing())


def rewrite_all(folder: Path, episodes: Sequence[Trajectory], every: int) -> Cost:
    """Record the same episodes by loading and rewriting one file after each `every` of them."""
    path = folder / f"rewritten-{every}.pt"
    written = 0
    start = time.perf_counter()
    for recorded in range(every, len(episodes) + 1, every):
        before = pickle.loads(path.read_bytes()) if path.exists() else []
        with path.open("wb") as file:
            pickle.dump(before + list(episodes[len(before) : recorded]), file)
            file.flush()
            os.fsync(file.fileno())
        written += path.stat().st_size
    return Cost(time.perf_counter() - start, written)


def measure(size: int, options: argparse.Namespace) -> None:
    rng = random.Random(0)
    steps = [tuple(_step(rng) for _ in range(options.steps)) for _ in range(min(size, DISTINCT))]
    episodes = [trajectory(index, steps[index % len(steps)]) for index in range(size)]
    folder = Path(tempfile.mkdtemp(prefix="store-", dir=options.folder))
    try:
        appended = asyncio.run(append_all(folder, episodes, options.concurrency))
        resume_s, found = asyncio.run(resume(folder, episodes))
        assert found == size, "the resume lost episodes"
        is_affordable = size <= options.max_rewritten
        rewritten = [rewrite_all(folder, episodes, n) for n in (size // 4, EVERY)] if is_affordable else []
    finally:
        shutil.rmtree(folder)
    cells = [f"{size:>9,}", *_cells(appended, size), f"{size / appended.seconds:>9,.0f}", f"{resume_s:>9.2f}"]
    cells += [cell for cost in rewritten for cell in _cells(cost, size)] or [f"{'-':>9}"] * 4
    print("  ".join(cells), flush=True)


def _cells(cost: Cost, size: int) -> list[str]:
    return [f"{cost.written_bytes / size:>9,.0f}", f"{cost.seconds / size * 1e6:>9,.0f}"]


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--max-episodes", type=int, default=max(SIZES))
    parser.add_argument("--max-rewritten", type=int, default=10_000, help="largest size for the baseline")
    parser.add_argument("--steps", type=int, default=1, help="steps an episode")
    parser.add_argument("--concurrency", type=int, default=512, help="episodes that end together")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's temporary folder")
    options = parser.parse_args()
    print(f"{'':9}  {'append':-^42}  {'rewrite at 25 %':-^20}  {'rewrite every 100':-^20}")
    names = ("episodes", "B/ep.", "us/ep.", "ep./s", "resume s", *("B/ep.", "us/ep.") * 2)
    print("  ".join(f"{name:>9}" for name in names))
    for size in SIZES:
        if size <= options.max_episodes:
            measure(size, options)


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
