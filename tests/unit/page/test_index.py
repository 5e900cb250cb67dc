"""The index follows the store."""

import random
import time
from dataclasses import replace

from rl_agent.page import index as index_module
from rl_agent.page.index import EpisodeIndex
from rl_agent.page.search import read_query, search
from rl_agent.paths import growing_name
from rl_agent.rollout.trajectories.line import to_line
from tests.unit.page.stores import attempts, count, follow, found, record
from tests.unit.rollout.trajectories_made import add_to_manifest, make_header, make_step, make_trajectory


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


def test_an_iteration_collected_anew_replaces_the_old_one(paths, opened):
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


def test_a_damaged_line_is_left_out_and_the_others_are_found(paths, opened):
    path = record(paths, 1, make_trajectory(0), make_trajectory(1), make_trajectory(2), grows=True)
    content = path.read_bytes().replace(b'"task_id":"task-1","prompt"', b'"task_id":"task-9","prompt"', 1)
    path.write_bytes(content)
    assert sorted(found(opened())) == ["task-0:0", "task-2:0"]


def test_what_memory_cannot_hold_is_spilled_until_the_page_ends(paths, opened, monkeypatch):
    monkeypatch.setitem(index_module._SETTINGS, "memory_limit", "24MB")
    words = random.Random(0)
    steps = (make_step("".join(words.choices("abcdefghij ", k=20_000))) for _ in range(2000))
    record(paths, 1, *(make_trajectory(n, steps=(step,)) for n, step in enumerate(steps)))
    one = opened()
    assert count(one) == 2000 and list(one._spilled.iterdir())
    one.close()
    assert not one._spilled.exists()


def test_a_failure_is_shown_and_the_index_tries_again_after_a_pause(paths, opened, monkeypatch):
    record(paths, 1, make_trajectory(0))
    monkeypatch.setattr(index_module, "AGAIN_AFTER_S", 0.02)
    one = EpisodeIndex(paths)
    deadline = time.monotonic() + 20
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "row_of", lambda *_: {"no": "column"})
        while not one.progress.problem and time.monotonic() < deadline:
            one.wake()
            time.sleep(0.01)
    assert "could not be brought up to date" in one.progress.problem
    follow(one, 1)
    one.close()
