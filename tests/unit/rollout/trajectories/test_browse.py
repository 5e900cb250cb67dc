"""Recorded trajectories are found, whichever files hold them."""

from pathlib import Path

import pytest

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.browse import Filter, find
from rl_agent.rollout.trajectories.manifest import ManifestEntry, write_manifest
from tests.unit.rollout.trajectories_made import make_header, make_trajectory, write_shard


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "log with space ü")


def write(shard: Path, *indices: int, torn: bytes = b"") -> Path:
    return write_shard(shard, make_header(), *map(make_trajectory, indices), torn=torn)


def entry(shard: Path, episodes: int, *, rank: int = 0, size_bytes: int | None = None) -> ManifestEntry:
    return ManifestEntry(
        file=shard.name.removesuffix(".checkpoint"), rank=rank, bytes=size_bytes, episodes=episodes
    )


def test_browsing_sees_finished_and_unfinished_iterations_of_several_nodes(paths):
    shards = [write(paths.checkpoint_shard("train", 1, rank=rank), rank, 2) for rank in (0, 1)]
    assert [found.seed for found in find(paths, Filter(split="train"))] == [0, 2, 1]
    write_manifest(paths, "train", 1, [entry(shard, 2) for shard in shards])
    assert [found.seed for found in find(paths, Filter(split="train"))] == [0, 2, 1]
