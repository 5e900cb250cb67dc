"""The files of an iteration are followed as they grow, each episode once."""

from pathlib import Path

import pytest

from rl_agent.errors import StoreError
from rl_agent.rollout.trajectories.line import to_line
from tests.unit.rollout.live_groups import GROUP_SIZE, Clock, begin, drain, episode, finish, keys, live, write


def overwrite(file: Path, place: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(content)


def test_nothing_is_there_yet(tmp_path):
    clock = Clock()
    source = live(tmp_path, clock=clock)
    assert source.take(1) == []
    assert clock.now <= 1  # it comes back, so that a trainer can be told to stop


def test_a_torn_line_is_read_once_it_is_whole(tmp_path):
    source, file = live(tmp_path), begin(tmp_path)
    line = to_line(episode(0, 2))
    write(file, episode(0, 0), episode(0, 1), torn=line[:40])
    assert source.take(1) == []
    write(file, torn=line[40:])
    assert keys(source.take(1)) == ["1/task-0:0"]


def test_a_file_that_is_cut_back_and_written_on_is_read_on(tmp_path):
    source, file = live(tmp_path), begin(tmp_path)
    write(file, episode(0, 0))
    kept = file.stat().st_size
    write(file, episode(1, 0), episode(0, 1))
    assert source.take(1) == []
    with file.open("r+b") as opened:
        opened.truncate(kept)
    write(file, episode(2, 0), episode(2, 1), episode(2, 2), episode(0, 1), episode(0, 2))
    assert sorted(keys(source.take(9))) == ["1/task-0:0", "1/task-2:0"]


def test_a_file_of_another_run_is_left_alone_and_may_vanish(tmp_path):
    source, old = live(tmp_path), begin(tmp_path, run_id="an earlier run")
    write(old, *(episode(0, attempt) for attempt in range(GROUP_SIZE)))
    assert source.take(1) == []
    old.rename(old.with_name(old.name + ".aside-20260101T000000.000000Z"))
    assert source.take(1) == []
    file = begin(tmp_path)
    write(file, *(episode(1, attempt) for attempt in range(GROUP_SIZE)))
    assert keys(source.take(1)) == ["1/task-1:0"]


def test_a_damaged_line_is_read_once_its_bytes_have_come(tmp_path):
    source, file = live(tmp_path), begin(tmp_path)
    write(file, episode(0, 0))
    hole, late = file.stat().st_size, to_line(episode(0, 1))
    write(file, episode(0, 1), episode(0, 2), *(episode(1, attempt) for attempt in range(GROUP_SIZE)))
    overwrite(file, hole + 5, bytes(100))  # a shared file system shows a hole for what is not here yet
    assert keys(source.take(9)) == ["1/task-1:0"]
    overwrite(file, hole, late)
    assert keys(source.take(9)) == ["1/task-0:0"]
    finish(tmp_path, file)
    assert source.take(9) is None


@pytest.mark.parametrize("header", [True, False])
def test_a_line_damaged_to_the_end_is_refused_or_left_out_of_many(tmp_path, header, caplog):
    file = begin(tmp_path)
    place = 5 if header else file.stat().st_size + 5
    write(file, episode(0, 0), episode(1, 0))
    overwrite(file, place, bytes(7))
    source = live(tmp_path)
    assert source.take(1) == []
    finish(tmp_path, file, episodes=2)
    with pytest.raises(StoreError, match=r"iteration1\.checkpoint:.* is damaged.*accept-loss"):
        source.take(1)
    finish(tmp_path, file, episodes=100)
    assert drain(live(tmp_path)) == (["1/task-0:0", "1/task-1:0"] if header else ["1/task-1:0"])
    assert "is damaged: its bytes do not match its checksum; the line is left out" in caplog.text


def test_a_file_that_is_shorter_than_it_was_at_the_end_is_named(tmp_path):
    file = begin(tmp_path)
    write(file, episode(0, 0))
    finish(tmp_path, file, cut={file: file.stat().st_size + 1})
    with pytest.raises(StoreError, match=r"is shorter than the \d+ bytes that count"):
        live(tmp_path).take(1)
