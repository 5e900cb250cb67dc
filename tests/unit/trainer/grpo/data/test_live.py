"""A trainer reads the files of an iteration while they grow: every group once, whatever happens to them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_agent.errors import DeadlineError
from rl_agent.paths import growing_name
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.types import Status
from tests.unit.rollout.live_groups import GROUP_SIZE, begin, drain, episode, finish, keys, live, write


def test_a_group_comes_once_its_last_sibling_is_recorded_in_any_file(tmp_path):
    source, first, second = live(tmp_path), begin(tmp_path, 0), begin(tmp_path, 1)
    write(first, episode(0, 0), episode(1, 0), episode(1, 1))
    write(second, episode(0, 1))
    assert source.take(9) == []
    write(second, episode(1, 2))
    assert keys(source.take(9)) == ["1/task-1:0"]
    write(first, episode(0, 2, status=Status.FAILED))
    (group,) = source.take(9)
    assert [sample.key for sample in group.samples] == ["task-0:0:0", "task-0:0:1"]
    finish(tmp_path, first, second)
    assert source.take(9) is None


def test_where_it_is_not_streamed_groups_come_when_the_rollout_is_over(tmp_path):
    source, file = live(tmp_path, streamed=False), begin(tmp_path)
    write(file, *(episode(group, attempt) for group in (0, 1) for attempt in range(GROUP_SIZE)))
    assert source.take(9) == []
    finish(tmp_path, file)
    assert keys(source.take(1)) == ["1/task-0:0"]
    assert keys(source.take(9)) == ["1/task-1:0"]
    assert source.take(9) is None


def test_lines_of_a_rank_after_it_was_given_up_do_not_count_at_the_end(tmp_path):
    source, lost, other = live(tmp_path), begin(tmp_path, 0), begin(tmp_path, 1)
    write(lost, episode(0, 0))
    counts = lost.stat().st_size
    write(other, episode(0, 1), episode(0, 2), *(episode(1, attempt) for attempt in range(GROUP_SIZE)))
    write(lost, *(episode(2, attempt) for attempt in range(GROUP_SIZE)))
    finish(tmp_path, lost, other, cut={lost: counts})
    assert sorted(drain(source)) == ["1/task-0:0", "1/task-1:0"]


def test_groups_whose_siblings_never_came_are_given_at_the_end(tmp_path):
    source, file = live(tmp_path), begin(tmp_path)
    write(file, episode(0, 0), episode(0, 1))
    finish(tmp_path, file)
    file.rename(file.with_name(file.name.removesuffix(".checkpoint")))
    assert drain(source) == ["1/task-0:0"]


def test_a_rollout_that_falls_silent_is_given_up_at_the_deadline(tmp_path):
    source = live(tmp_path)
    with pytest.raises(DeadlineError, match="iteration 1: no episode was recorded in 100 s"):
        while source.take(1) is not None:
            pass


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_group_comes_once_however_the_files_grow(tmp_path_factory, data):
    """Any number of ranks, duplicates after a takeover, torn lines, restarts of the reader, renames."""
    log_path = tmp_path_factory.mktemp("live")
    groups = data.draw(st.integers(1, 5), "groups")
    ranks = data.draw(st.integers(1, 3), "ranks")
    files = [begin(log_path, rank) for rank in range(ranks)]
    wanted = [(g, a) for g in range(groups) for a in range(GROUP_SIZE)]
    again = data.draw(st.lists(st.sampled_from(wanted), max_size=4), "recorded twice")
    order = data.draw(st.permutations([*wanted, *again]), "order")
    source, taken = live(log_path), []
    torn: dict[Path, bytes] = {}
    for group, attempt in order:
        file = data.draw(st.sampled_from(files), "file")
        line = torn.pop(file, b"") + to_line(episode(group, attempt))
        cut = data.draw(st.integers(0, len(line)), "torn at")
        write(file, torn=line[:cut])
        torn[file] = line[cut:]
        if data.draw(st.booleans(), "read now"):
            taken += keys(source.take(data.draw(st.integers(1, 3), "most")))
        if data.draw(st.integers(0, 9), "restart") == 0:
            source = live(log_path)
    for file, rest in torn.items():
        write(file, torn=rest)
    finish(log_path, *files)
    for file in files:
        if data.draw(st.booleans(), "renamed"):
            file.rename(file.with_name(file.name.removesuffix(".checkpoint")))
    taken += drain(source)
    assert set(taken) == {f"1/task-{group}:0" for group in range(groups)}
    without_restart = drain(live(log_path))
    assert sorted(without_restart) == sorted(set(taken))  # a new reader gives all, each once
    assert all(growing_name(file).name for file in files)
