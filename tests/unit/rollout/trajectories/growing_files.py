"""Files of trajectories, written and read."""

from pathlib import Path

from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.rollout.trajectories.store import ShardWriter
from tests.unit.rollout.trajectories_made import make_header, make_trajectory


def create(growing: Path, **changes):
    return ShardWriter.create(growing, make_header(), **changes)


async def write_unfinished(growing: Path, count: int) -> Path:
    async with create(growing) as writer:
        for index in range(count):
            await writer.append(make_trajectory(index))
    return growing


def read(path: Path) -> list:
    return list(read_shard(path)[1])
