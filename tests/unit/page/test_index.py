"""The index follows the store, and is made anew whenever it cannot be trusted."""

import time
from dataclasses import replace

import pytest

from rl_agent.page.search import read_query, search
from rl_agent.paths import growing_name
from rl_agent.rollout.trajectories.line import to_line
from tests.unit.page.followed import count, follow, found
from tests.unit.page.stores import attempts, record
from tests.unit.rollout.trajectories_made import add_to_manifest, make_header, make_trajectory


def test_a_growing_file_is_followed_to_its_last_whole_line(paths, opened):
    path = record(paths, 1, make_trajectory(0), grows=True)
    one = opened()
    line = to_line(make_trajectory(1))
    with path.open("ab") as file:
        file.write(line[:50])
        file.flush()
        assert count(one) == 1
        file.write(line[50:])
    follow(one, 2)
    path.rename(path.with_name(path.name.removesuffix(".checkpoint")))
    add_to_manifest(paths.shard("train", 1), make_header(), 2)
    record(paths, 2, make_trajectory(2, iteration=2), grows=True)
    follow(one, 3)
    assert sorted(found(one)) == ["task-0:0", "task-1:0", "task-2:0"]


def test_an_iteration_that_is_collected_anew_takes_the_place_of_the_old_one(paths, opened):
    path = record(paths, 1, make_trajectory(0), make_trajectory(1), grows=True)
    one = opened()
    assert count(one) == 2
    path.rename(path.with_name(f"{path.name}.aside-20260101T000000Z"))
    record(paths, 1, make_trajectory(2), make_trajectory(3), make_trajectory(4), grows=True)
    follow(one, 3)
    assert sorted(found(one)) == ["task-2:0", "task-3:0", "task-4:0"]


def test_an_episode_that_two_files_hold_counts_once_as_the_manifest_has_it(paths, opened):
    first, second = attempts(0, [0.0, 0.0])
    ours, theirs = (growing_name(paths.shard("train", 1, rank=rank)) for rank in (0, 1))
    for path, reward in ((theirs, 0.25), (ours, 0.75)):
        path.parent.mkdir(exist_ok=True)
        from rl_agent.rollout.trajectories.shard import start_shard

        start_shard(path, make_header())
        with path.open("ab") as file:
            file.write(to_line(replace(first, reward=reward)) + to_line(replace(second, reward=reward)))
    one = opened()
    assert count(one) == 2
    for rank in (1, 0):
        growing_name(paths.shard("train", 1, rank=rank)).rename(paths.shard("train", 1, rank=rank))
        add_to_manifest(paths.shard("train", 1, rank=rank), make_header(), 2 if rank else 0)
    follow(one, 2)
    deadline = time.monotonic() + 20
    while search(one, read_query({}), 1).reward_mean != 0.25 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert search(one, read_query({}), 1).reward_mean == 0.25


@pytest.mark.parametrize("damage", [b"", b"no database", None])
def test_an_index_that_is_lost_or_damaged_is_made_anew(paths, opened, damage):
    record(paths, 1, make_trajectory(0))
    opened().close()
    file = paths.page_index / "index.duckdb"
    file.unlink() if damage is None else file.write_bytes(damage)
    assert count(opened()) == 1


def test_a_second_reader_of_the_same_log_path_has_an_index_of_its_own(paths, opened):
    record(paths, 1, make_trajectory(0))
    (paths.page_index).mkdir()
    (paths.page_index / "index.duckdb").mkdir()  # nothing can be opened there
    assert count(opened()) == 1


def test_a_damaged_line_is_left_out_and_the_others_are_found(paths, opened):
    path = record(paths, 1, make_trajectory(0), make_trajectory(1), make_trajectory(2), grows=True)
    content = path.read_bytes().replace(b'"task_id":"task-1","prompt"', b'"task_id":"task-9","prompt"', 1)
    path.write_bytes(content)
    assert sorted(found(opened())) == ["task-0:0", "task-2:0"]
