"""Killing a shard's writer and filling its disk: nothing acknowledged is lost, nothing is there twice."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout.trajectories.shard import read_shard
from tests.support.small_disk import small_disk_at

pytestmark = pytest.mark.chaos

EPISODES = 2_000

WRITER = """
import asyncio, sys
from pathlib import Path
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.rollout.trajectories.store import ShardWriter
from tests.unit.rollout.trajectories_made import make_header, make_trajectory

growing, count = Path(sys.argv[1]), int(sys.argv[2])

async def main():
    is_resumed = growing.exists() and growing.stat().st_size
    if not is_resumed:
        growing.unlink(missing_ok=True)  # killed between taking the name and writing the header
    recorded = {episode.seed for episode in read_shard(growing)[1]} if is_resumed else set()
    opened = ShardWriter.resume(growing) if is_resumed else ShardWriter.create(growing, make_header())
    async with opened as writer:
        left = [index for index in range(count) if index not in recorded]
        async def run(mine):
            for i in mine:
                await writer.append(make_trajectory(i))
                sys.stdout.write(f"{i}\\n")  # the parent counts what was acknowledged
                sys.stdout.flush()
        async with asyncio.TaskGroup() as group:
            for first in range(64):
                group.create_task(run(left[first::64]))
        await writer.close()

asyncio.run(main())
"""


def start_writer(growing: Path) -> subprocess.Popen:
    argv = [sys.executable, "-c", WRITER, str(growing), str(EPISODES)]
    return subprocess.Popen(argv, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.fixture
def rng(request) -> random.Random:
    seed = random.randrange(2**32)
    print(f"chaos seed {seed}")
    return random.Random(seed)


def test_a_writer_killed_again_and_again_loses_and_repeats_nothing(tmp_path, rng):
    growing = RunPaths(tmp_path).checkpoint_shard("train", 1)
    acknowledged: list[int] = []
    kills = 0
    for _ in range(30):
        survives = rng.randrange(100, 400) if kills < 6 else EPISODES + 1
        with start_writer(growing) as writer:
            for line in writer.stdout:
                acknowledged.append(int(line))
                survives -= 1
                if survives == 0:
                    os.killpg(writer.pid, signal.SIGKILL)
                    kills += 1  # the pipe is still read to its end: what was acknowledged before the kill
        if writer.returncode == 0:
            break
    _, trajectories = read_shard(growing)
    recorded = [int(trajectory.key.task_id.removeprefix("task-")) for trajectory in trajectories]

    assert kills >= 4
    assert len(acknowledged) == len(set(acknowledged)), "an episode was acknowledged twice"
    assert set(acknowledged) <= set(recorded), "an acknowledged episode was lost"
    assert sorted(recorded) == list(range(EPISODES)), "an episode is missing or there twice"


LIMITED_WRITER = """
import asyncio, resource, sys
from pathlib import Path
from rl_agent.errors import StoreError
from rl_agent.rollout.trajectories.store import ShardWriter
from tests.unit.rollout.trajectories_made import make_header, make_trajectory

async def main():
    async with ShardWriter.create(Path(sys.argv[1]), make_header()) as writer:
        async def run(i):
            try:
                await writer.append(make_trajectory(i))
                return True
            except StoreError as error:
                return str(error)
        results = await asyncio.gather(*map(run, range(40)))
        for start in range(40, 400, 40):
            results += await asyncio.gather(*map(run, range(start, start + 40)))
        print(sum(result is True for result in results))
        print({result for result in results if result is not True})

if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
asyncio.run(main())
"""


def fill(log_path: Path, *limit: str) -> tuple[int, str]:
    """Write until there is no room; returns how many episodes were acknowledged, and what was said."""
    growing = RunPaths(log_path).checkpoint_shard("train", 1)
    argv = [sys.executable, "-c", LIMITED_WRITER, str(growing), *limit]
    done = subprocess.run(argv, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    count, output = done.stdout.splitlines()
    return int(count), output


def holds_exactly(log_path: Path, count: int) -> None:
    shard = RunPaths(log_path).checkpoint_shard("train", 1)
    assert shard.read_bytes().endswith(b"\n")
    assert len(list(read_shard(shard)[1])) == count


async def test_a_file_size_limit_is_reported_and_keeps_acknowledged_entries(tmp_path):
    count, output = fill(tmp_path, "100000")
    assert 40 <= count < 400
    assert "File too large; the episodes recorded before are intact" in output
    holds_exactly(tmp_path, count)


@pytest.fixture
def small_disk(tmp_path):
    with small_disk_at(tmp_path / "disk", "256k") as folder:
        yield folder


async def test_a_full_disk_is_reported_and_keeps_acknowledged_entries(small_disk):
    count, output = await asyncio.to_thread(fill, small_disk)
    assert 40 <= count < 400
    assert "No space left on device; the episodes recorded before are intact" in output
    holds_exactly(small_disk, count)
