"""Names of the files under a log path, and what they say when they are read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.paths import RunPaths, growing_name, rank_of


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@given(rank=st.none() | st.integers(0, 99), part=st.integers(1, 9), iteration=st.integers(1, 999))
def test_a_file_is_found_by_the_name_that_it_was_given(tmp_path_factory, rank, part, iteration):
    paths = RunPaths(tmp_path_factory.mktemp("log"))
    part = 1 if rank is None else part
    shard = paths.shard("train", iteration, rank=rank, part=part)
    touch(growing_name(shard))
    assert paths.shards("train", iteration) == [shard]
    assert rank_of(shard) == (rank or 0)
    assert paths.iterations("train") == [] and paths.iterations("train", unfinished=True) == [iteration]


def test_an_iteration_is_finished_by_manifest_or_by_a_file_without_suffix(paths):
    touch(paths.checkpoint_shard("train", 1, rank=0))
    touch(paths.manifest("train", 1))
    touch(paths.shard("train", 2))
    touch(paths.checkpoint_shard("train", 3, rank=0))
    touch(paths.checkpoint_shard("train", 4))
    touch(paths.shard("train", 5, rank=0))
    touch(paths.checkpoint_shard("train", 5, rank=1))
    assert paths.iterations("train") == [1, 2, 5]
    assert paths.iterations("train", unfinished=True) == [3, 4]
    assert [number for number in range(1, 7) if paths.is_finished("train", number)] == [1, 2, 5]
    assert paths.iterations("test") == []


@pytest.mark.parametrize(
    "name", ["iteration1.aside-2026", "iteration1.lock", "iterationx", "iteration1_rank_x"]
)
def test_other_files_are_passed_over(paths, name):
    touch(paths.trajectory_dir("train") / f"train_trajectories.jsonl.{name}")
    assert paths.iterations("train") == paths.iterations("train", unfinished=True) == []


def test_files_come_in_the_order_of_ranks_and_parts_a_single_nodes_first(paths):
    wanted = [
        paths.shard("train", 1),
        paths.shard("train", 1, rank=0),
        paths.shard("train", 1, rank=2),
        paths.shard("train", 1, rank=2, part=2),
        paths.shard("train", 1, rank=10),
    ]
    touch(paths.shard("train", 11))
    for path in reversed(wanted):
        touch(growing_name(path))
    assert paths.shards("train", 1) == wanted
    prefix = "train_trajectories.jsonl.iteration1"
    assert [path.name for path in wanted[2:4]] == [f"{prefix}_rank_2", f"{prefix}_rank_2_part_2"]
