"""The index follows the store, and is made anew whenever it cannot be trusted."""

import contextlib
import shutil
from dataclasses import replace

import pytest

from rl_agent.errors import StoreError
from rl_agent.page.index import EpisodeIndex
from rl_agent.page.index_file import FILE
from rl_agent.page.search import read_query, search
from rl_agent.paths import growing_name
from rl_agent.rollout.trajectories.line import to_line
from tests.unit.page.stores import attempts, count, follow, names_of, record, until
from tests.unit.rollout.trajectories_made import add_to_manifest, make_header, make_trajectory, write_shard


def test_a_growing_file_is_followed_to_its_last_whole_line(paths, opened):
    path = record(paths, 1, make_trajectory(0), grows=True)
    index = opened()
    line = to_line(make_trajectory(1))
    with path.open("ab") as file:
        file.write(line[:50])
        file.flush()
        assert count(index) == 1
        file.write(line[50:])
    follow(index, 2)
    path.rename(path.with_name(path.name.removesuffix(".checkpoint")))
    add_to_manifest(paths.shard("train", 1), make_header(), 2)
    record(paths, 2, make_trajectory(2, iteration=2), grows=True)
    follow(index, 3)
    assert sorted(names_of(index)) == ["task-0:0", "task-1:0", "task-2:0"]


def test_an_iteration_collected_anew_replaces_the_old_one(paths, opened):
    path = record(paths, 1, make_trajectory(0), make_trajectory(1), grows=True)
    index = opened()
    assert count(index) == 2
    path.rename(path.with_name(f"{path.name}.aside-20260101T000000Z"))
    record(paths, 1, make_trajectory(2), make_trajectory(3), make_trajectory(4), grows=True)
    follow(index, 3)
    assert sorted(names_of(index)) == ["task-2:0", "task-3:0", "task-4:0"]


def test_an_episode_that_two_files_hold_counts_once_as_the_manifest_has_it(paths, opened):
    first, second = attempts(0, [0.0, 0.0])
    ours, theirs = (growing_name(paths.shard("train", 1, rank=rank)) for rank in (0, 1))
    for path, reward in ((theirs, 0.25), (ours, 0.75)):
        write_shard(path, make_header(), *(replace(each, reward=reward) for each in (first, second)))
    index = opened()
    assert count(index) == 2
    for rank in (1, 0):
        growing_name(paths.shard("train", 1, rank=rank)).rename(paths.shard("train", 1, rank=rank))
        add_to_manifest(paths.shard("train", 1, rank=rank), make_header(), 2 if rank else 0)
    follow(index, 2)
    until(lambda: search(index, read_query({}), 1).reward_mean == 0.25)


@pytest.mark.parametrize("damage", [b"no database", None])
def test_an_index_that_is_lost_or_damaged_is_made_anew(paths, opened, damage):
    record(paths, 1, make_trajectory(0))
    opened().close()
    file = paths.page_index / FILE
    file.unlink() if damage is None else file.write_bytes(damage)
    assert names_of(opened(), text="task") == ["task-0:0"]


def test_an_index_that_is_deleted_while_it_is_open_is_made_anew(paths, opened):
    record(paths, 1, make_trajectory(0))
    index = opened()
    shutil.rmtree(paths.page_index)
    record(paths, 2, make_trajectory(1, iteration=2))

    def is_made_anew():
        index.wake()
        with contextlib.suppress(StoreError):  # it is closed while it is read
            return count(index) == 2 and (paths.page_index / FILE).exists()

    until(is_made_anew)


def test_a_second_reader_of_the_same_log_path_has_an_index_of_its_own(paths, opened):
    record(paths, 1, make_trajectory(0))
    first, second = opened(), opened()
    assert count(first) == 1 == count(second)
    record(paths, 2, make_trajectory(1, iteration=2))
    follow(second, 2)
    follow(first, 2)


def test_a_damaged_line_is_left_out_and_the_others_are_found(paths, opened):
    path = record(paths, 1, make_trajectory(0), make_trajectory(1), make_trajectory(2), grows=True)
    content = path.read_bytes().replace(b'"task_id":"task-1","prompt"', b'"task_id":"task-9","prompt"', 1)
    path.write_bytes(content)
    assert sorted(names_of(opened())) == ["task-0:0", "task-2:0"]


def test_a_page_that_ends_in_mid_iteration_reads_it_whole_the_next_time(paths, opened, monkeypatch):
    record(paths, 1, *(make_trajectory(n) for n in range(6)))
    index = EpisodeIndex(paths)
    with monkeypatch.context() as patch:
        patch.setattr("rl_agent.page.index.BATCH", 2)
        patch.setattr(index, "_add", lambda _: index._leaving.set())
        index.wake()
        assert index._leaving.wait(10)  # it leaves by itself, in the middle
        index.close()
    assert count(opened()) == 6
