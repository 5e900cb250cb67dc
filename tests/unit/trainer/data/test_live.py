"""A trainer reads the files of an iteration while they grow: every group once, whatever happens to them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_agent.errors import DeadlineError, StoreError
from rl_agent.paths import RunPaths, growing_name
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.manifest import ManifestEntry, write_manifest
from rl_agent.rollout.trajectories.shard import start_shard
from rl_agent.trainer.data.live import LiveIteration
from rl_agent.types import EpisodeKey, Status, Trajectory
from tests.unit.rollout.trajectories_made import make_header, make_trajectory

GROUP_SIZE = 3


def episode(group: int, attempt: int, *, status: Status = Status.COMPLETED) -> Trajectory:
    found = make_trajectory(group, status=status)
    return replace(found, key=EpisodeKey(f"task-{group}", 0, attempt))


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def live(log_path: Path, *, run_id: str = "run", clock: Clock | None = None) -> LiveIteration:
    clock = clock or Clock()
    return LiveIteration(
        RunPaths(log_path),
        1,
        run_id=run_id,
        group_size=GROUP_SIZE,
        silence_timeout_s=100.0,
        clock=clock,
        sleep=clock.sleep,
    )


def begin(log_path: Path, rank: int | None = None, *, run_id: str = "run") -> Path:
    growing = RunPaths(log_path).checkpoint_shard("train", 1, rank=rank)
    start_shard(growing, replace(make_header(), run_id=run_id))
    return growing


def write(file: Path, *episodes: Trajectory, torn: bytes = b"") -> None:
    with file.open("ab") as opened:
        opened.write(b"".join(map(to_line, episodes)) + torn)


def overwrite(file: Path, place: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(content)


def finish(log_path: Path, *files: Path, cut: dict[Path, int] | None = None, episodes: int = 0) -> None:
    cut = cut or {}
    entries = [
        ManifestEntry(file=f.name.removesuffix(".checkpoint"), rank=n, bytes=cut.get(f), episodes=episodes)
        for n, f in enumerate(files)
    ]
    write_manifest(RunPaths(log_path), "train", 1, entries)


def keys(groups) -> list[str]:
    return [group.key for group in groups]


def drain(source: LiveIteration) -> list[str]:
    """All that is left until the iteration is over."""
    found: list[str] = []
    while (groups := source.take(2)) is not None:
        found += keys(groups)
    return found


def test_a_group_comes_as_soon_as_its_last_sibling_is_recorded_in_whatever_file(tmp_path):
    source, one, other = live(tmp_path), begin(tmp_path, 0), begin(tmp_path, 1)
    write(one, episode(0, 0), episode(1, 0), episode(1, 1))
    write(other, episode(0, 1))
    assert source.take(9) == []
    write(other, episode(1, 2))
    assert keys(source.take(9)) == ["1/task-1:0"]
    write(one, episode(0, 2, status=Status.FAILED))
    (group,) = source.take(9)
    assert [sample.key for sample in group.samples] == ["task-0:0:0", "task-0:0:1"]
    finish(tmp_path, one, other)
    assert source.take(9) is None


def test_where_it_is_not_streamed_groups_come_when_the_rollout_is_over(tmp_path):
    clock = Clock()
    source = LiveIteration(
        RunPaths(tmp_path), 1, run_id="run", group_size=GROUP_SIZE, streamed=False,
        silence_timeout_s=100.0, clock=clock, sleep=clock.sleep,
    )  # fmt: skip
    file = begin(tmp_path)
    write(file, *(episode(group, attempt) for group in (0, 1) for attempt in range(GROUP_SIZE)))
    assert source.take(9) == []
    finish(tmp_path, file)
    assert keys(source.take(1)) == ["1/task-0:0"]
    assert keys(source.take(9)) == ["1/task-1:0"]
    assert source.take(9) is None


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


def test_what_a_rank_wrote_after_it_was_given_up_does_not_count_at_the_end(tmp_path):
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


def test_a_damaged_line_is_read_once_its_bytes_have_come(tmp_path):
    source, file = live(tmp_path), begin(tmp_path)
    write(file, episode(0, 0))
    hole, late = file.stat().st_size, to_line(episode(0, 1))
    write(file, episode(0, 1), episode(0, 2), *(episode(1, attempt) for attempt in range(GROUP_SIZE)))
    overwrite(
        file, hole + 5, bytes(100)
    )  # a shared file system shows a hole in place of what is not here yet
    assert keys(source.take(9)) == ["1/task-1:0"]
    overwrite(file, hole, late)
    assert keys(source.take(9)) == ["1/task-0:0"]
    finish(tmp_path, file)
    assert source.take(9) is None


@pytest.mark.parametrize("header", [True, False])
def test_a_line_that_is_damaged_to_the_end_is_refused_then_or_left_out_where_it_is_one_of_many(
    tmp_path, header, caplog
):
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
    source, found = live(log_path), []
    torn: dict[Path, bytes] = {}
    for group, attempt in order:
        file = data.draw(st.sampled_from(files), "file")
        line = torn.pop(file, b"") + to_line(episode(group, attempt))
        cut = data.draw(st.integers(0, len(line)), "torn at")
        write(file, torn=line[:cut])
        torn[file] = line[cut:]
        if data.draw(st.booleans(), "read now"):
            found += keys(source.take(data.draw(st.integers(1, 3), "most")))
        if data.draw(st.integers(0, 9), "restart") == 0:
            source = live(log_path)
    for file, rest in torn.items():
        write(file, torn=rest)
    finish(log_path, *files)
    for file in files:
        if data.draw(st.booleans(), "renamed"):
            file.rename(file.with_name(file.name.removesuffix(".checkpoint")))
    found += drain(source)
    assert set(found) == {f"1/task-{group}:0" for group in range(groups)}
    without_restart = drain(live(log_path))
    assert sorted(without_restart) == sorted(set(found))  # a new reader gives all, each once
    assert all(growing_name(file).name for file in files)
