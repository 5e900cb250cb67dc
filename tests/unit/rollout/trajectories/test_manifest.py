"""An iteration that several nodes recorded: finished by its manifest, read as one, each episode once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.manifest import ManifestEntry, parts_of, write_manifest
from tests.unit.rollout.master_rollouts import write
from tests.unit.rollout.trajectories_made import make_trajectory, seeds_of


def entry(shard: Path, episodes: int, *, rank: int = 0, size_bytes: int | None = None) -> ManifestEntry:
    name = shard.name.removesuffix(".checkpoint")
    return ManifestEntry(file=name, rank=rank, bytes=size_bytes, episodes=episodes)


def test_files_are_read_with_and_without_their_suffix(paths):
    write(paths.checkpoint_shard("train", 1, rank=0), 0, 1)
    write(paths.checkpoint_shard("train", 1, rank=1), 2)
    entries = [entry(shard, 1) for shard in paths.shards("train", 1)]
    assert seeds_of(paths) == [0, 1, 2]

    write_manifest(paths, "train", 1, entries)
    paths.checkpoint_shard("train", 1, rank=1).rename(paths.shard("train", 1, rank=1))
    assert seeds_of(paths) == [0, 1, 2]


def test_a_cut_file_counts_up_to_its_cut_whatever_was_written_behind(paths):
    dead = write(paths.checkpoint_shard("train", 1, rank=1), 0, 1)
    cut = dead.stat().st_size
    write(paths.shard("train", 1, rank=0), 2, 3)
    entries = [entry(paths.shard("train", 1, rank=0), 2), entry(dead, 2, rank=1, size_bytes=cut)]
    write_manifest(paths, "train", 1, entries)
    with dead.open("ab") as file:  # it woke up
        file.write(to_line(make_trajectory(3)) + to_line(make_trajectory(4)))

    assert seeds_of(paths) == [2, 3, 0, 1]


def test_a_file_whose_header_was_never_written_holds_nothing(paths):
    write(paths.checkpoint_shard("train", 1, rank=0), 0)
    paths.checkpoint_shard("train", 1, rank=1).touch()
    assert seeds_of(paths) == [0]


def test_a_missing_file_is_named_with_the_manifest_that_wants_it(paths):
    shard = write(paths.shard("train", 1, rank=0), 0)
    write_manifest(paths, "train", 1, [entry(shard, 1), entry(paths.shard("train", 1, rank=3), 1, rank=3)])
    with pytest.raises(StoreError, match=r"iteration1_rank_3: is missing; .*iteration1\.manifest\.json"):
        parts_of(paths, "train", 1)


@pytest.mark.parametrize(
    ("size_bytes", "message"),
    [(100_000, "is shorter than the 100000 bytes"), (None, "holds 1 of the 2 episodes")],
)
def test_a_file_that_lost_episodes_is_named(paths, size_bytes, message):
    shard = write(paths.shard("train", 1, rank=0), 0)
    write_manifest(paths, "train", 1, [entry(shard, 2, size_bytes=size_bytes)])
    with pytest.raises(StoreError, match=rf"iteration1_rank_0: {message}"):
        seeds_of(paths)


@pytest.mark.parametrize("content", [b"", b"[{}]", b'{"file": "x"}', b'[{"file": "a", "rank": -1}]'])
def test_a_damaged_manifest_is_named(paths, content):
    write(paths.shard("train", 1, rank=0), 0)
    paths.manifest("train", 1).write_bytes(content)
    with pytest.raises(StoreError, match=r"iteration1\.manifest\.json: cannot be read"):
        seeds_of(paths)


RECORDED = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=8), min_size=1, max_size=4)


@given(recorded=RECORDED, cuts=st.lists(st.none() | st.integers(0, 5000), min_size=4, max_size=4))
def test_each_episode_within_the_cuts_is_read_exactly_once(tmp_path_factory, recorded, cuts):
    paths = RunPaths(tmp_path_factory.mktemp("log"))
    entries, expected = [], set()
    for rank, (indices, cut) in enumerate(zip(recorded, cuts, strict=False)):
        shard = write(paths.checkpoint_shard("train", 1, rank=rank), *indices, torn=b"{")
        content = shard.read_bytes()
        counted = content if cut is None else content[:cut]
        whole = counted.count(b"\n")
        expected |= set(indices[: max(0, whole - 1)])
        size_bytes = None if cut is None else min(cut, len(content))
        entries.append(entry(shard, max(0, whole - 1), rank=rank, size_bytes=size_bytes))
    write_manifest(paths, "train", 1, entries)

    seeds = seeds_of(paths)
    assert len(seeds) == len(set(seeds))
    assert set(seeds) == expected
