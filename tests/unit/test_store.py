"""The store: what is acknowledged is on the disk, once, whatever happens in between."""

import asyncio
import dataclasses
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rl_agent.errors import ConfigError, StoreError
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout import store
from rl_agent.rollout.store import Recorded, ShardWriter, read_header, read_shard
from rl_agent.types import EpisodeKey, Status
from tests.unit.trajectories import make_header, make_trajectory


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "log with space ü")


async def write_unfinished(paths: RunPaths, count: int) -> Path:
    async with ShardWriter.create(paths, make_header()) as writer:
        for index in range(count):
            await writer.append(make_trajectory(index))
    return paths.checkpoint_shard("train", 1)


async def test_a_finished_shard_reads_back_what_was_appended(paths):
    episodes = [make_trajectory(0), make_trajectory(1, status=Status.TIMED_OUT, steps=())]

    async with ShardWriter.create(paths, make_header()) as writer:
        for episode in episodes:
            await writer.append(episode)
        finished = await writer.complete()

    header, trajectories = read_shard(finished)
    assert header == make_header()
    assert list(trajectories) == episodes
    assert [entry.name for entry in finished.parent.iterdir()] == ["train_trajectories.jsonl.iteration1"]


async def test_an_episode_is_on_the_disk_when_append_returns(paths):
    async with ShardWriter.create(paths, make_header()) as writer:
        await writer.append(make_trajectory(0))
        _, trajectories = read_shard(paths.checkpoint_shard("train", 1))
        assert list(trajectories) == [make_trajectory(0)]


async def test_appends_that_wait_together_share_an_fsync(paths, monkeypatch):
    syncs = []
    real = os.fdatasync
    monkeypatch.setattr(store.os, "fdatasync", lambda fd: (syncs.append(fd), real(fd)))

    async with ShardWriter.create(paths, make_header()) as writer, asyncio.TaskGroup() as group:
        for index in range(500):
            group.create_task(writer.append(make_trajectory(index)))

    assert 1 <= len(syncs) < 50
    assert len(list(read_shard(paths.checkpoint_shard("train", 1))[1])) == 500


async def test_without_fsync_nothing_waits_for_the_disk(paths, monkeypatch):
    monkeypatch.setattr(store.os, "fdatasync", lambda fd: pytest.fail("synced"))
    async with ShardWriter.create(paths, make_header(), fsync=False) as writer:
        await writer.append(make_trajectory(0))
    assert len(list(read_shard(paths.checkpoint_shard("train", 1))[1])) == 1


async def test_numbers_that_json_cannot_hold_survive(paths):
    episode = make_trajectory(0)
    generation = dataclasses.replace(
        episode.steps[0].generation, logprobs=(-math.inf,) * len(episode.steps[0].generation.token_ids)
    )
    episode = dataclasses.replace(
        episode, steps=(dataclasses.replace(episode.steps[0], generation=generation),)
    )
    async with ShardWriter.create(paths, make_header()) as writer:
        await writer.append(episode)
    assert list(read_shard(paths.checkpoint_shard("train", 1))[1]) == [episode]


async def test_a_value_without_json_form_is_refused_and_named(paths):
    odd = dataclasses.replace(make_trajectory(0), reward_detail={"judge": object()})
    async with ShardWriter.create(paths, make_header()) as writer:
        with pytest.raises(StoreError, match="task-0:0:0 cannot be written as JSON"):
            await writer.append(odd)
        await writer.append(make_trajectory(0))


async def test_an_episode_is_recorded_only_once(paths):
    async with ShardWriter.create(paths, make_header()) as writer:
        await writer.append(make_trajectory(0))
        with pytest.raises(StoreError, match="recorded before"):
            await writer.append(make_trajectory(0))
    async with ShardWriter.resume(paths, "train", 1) as writer:
        with pytest.raises(StoreError, match="recorded before"):
            await writer.append(make_trajectory(0))


async def test_a_cancelled_append_is_written_all_the_same(paths):
    async with ShardWriter.create(paths, make_header()) as writer:
        job = asyncio.ensure_future(writer.append(make_trajectory(0)))
        await asyncio.sleep(0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
    assert list(read_shard(paths.checkpoint_shard("train", 1))[1]) == [make_trajectory(0)]


async def test_resume_goes_on_where_it_stopped(paths):
    await write_unfinished(paths, 2)

    async with ShardWriter.resume(paths, "train", 1) as writer:
        assert writer.header == make_header()
        assert writer.completed == {
            EpisodeKey(f"task-{i}", 0, 0): Recorded(
                EpisodeKey(f"task-{i}", 0, 0), Status.COMPLETED, 1.0, False
            )
            for i in range(2)
        }
        await writer.append(make_trajectory(2))
        finished = await writer.complete()

    assert list(read_shard(finished)[1]) == [make_trajectory(i) for i in range(3)]


async def test_resume_without_a_checkpoint_is_a_configuration_error(paths):
    with pytest.raises(ConfigError, match="no unfinished rollout"):
        async with ShardWriter.resume(paths, "train", 1):
            pass


@pytest.mark.parametrize("kept_bytes", [1, 200, -1])
async def test_a_torn_last_line_is_skipped_by_readers_and_cut_by_resume(paths, kept_bytes):
    path = await write_unfinished(paths, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:kept_bytes])

    assert list(read_shard(path)[1]) == [make_trajectory(0)]
    async with ShardWriter.resume(paths, "train", 1) as writer:
        assert [key.task_id for key in writer.completed] == ["task-0"]
        assert path.read_bytes() == b"".join(lines[:2])
        await writer.append(make_trajectory(1))
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("bad", [b"{}\n", b'{"key": \n', b"\0\0\0\n"])
async def test_a_bad_line_elsewhere_is_named_by_file_and_number(paths, bad):
    path = await write_unfinished(paths, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + bad + lines[3])

    with pytest.raises(StoreError, match=r"iteration1\.checkpoint:3: "):
        list(read_shard(path)[1])
    with pytest.raises(StoreError, match=r"iteration1\.checkpoint:3: "):
        async with ShardWriter.resume(paths, "train", 1):
            pass
    assert path.read_bytes() == lines[0] + lines[1] + bad + lines[3]


async def test_a_line_recorded_twice_is_an_error_not_a_choice(paths):
    path = await write_unfinished(paths, 2)
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[1])
    with pytest.raises(StoreError, match=":4: episode task-0:0:0 is recorded twice"):
        async with ShardWriter.resume(paths, "train", 1):
            pass


async def test_a_newer_schema_is_refused(paths):
    path = await write_unfinished(paths, 1)
    path.write_bytes(path.read_bytes().replace(b'"schema_version":1', b'"schema_version":2', 1))
    with pytest.raises(StoreError, match=":1: schema version 2 is newer than 1"):
        read_header(path)


def test_a_missing_or_empty_shard_is_named(tmp_path):
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        read_shard(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="holds no header"):
        read_shard(tmp_path / "empty")


async def test_a_fresh_start_sets_the_unfinished_shard_aside(paths):
    old = (await write_unfinished(paths, 2)).read_bytes()

    async with ShardWriter.create(paths, make_header(created_at=1_700_000_001.5)) as writer:
        assert not writer.completed

    aside = paths.trajectory_dir("train") / (
        "train_trajectories.jsonl.iteration1.checkpoint.aside-20231114T221321.500000Z"
    )
    assert aside.read_bytes() == old
    assert paths.iterations("train", unfinished=True) == [1]


async def test_a_finished_iteration_is_never_overwritten(paths):
    async with ShardWriter.create(paths, make_header()) as writer:
        await writer.complete()
    with pytest.raises(StoreError, match="complete already"):
        async with ShardWriter.create(paths, make_header()):
            pass


async def test_a_closed_writer_refuses_instead_of_hanging(paths):
    async with ShardWriter.create(paths, make_header()) as writer:
        pass
    with pytest.raises(StoreError, match="is closed"):
        await writer.append(make_trajectory(0))
    async with ShardWriter.resume(paths, "train", 1) as writer:
        await writer.complete()
        with pytest.raises(StoreError, match="takes no more episodes"):
            await writer.append(make_trajectory(0))


async def test_an_error_in_the_body_keeps_what_was_appended(paths):
    with pytest.raises(ZeroDivisionError):
        async with ShardWriter.create(paths, make_header()) as writer:
            await writer.append(make_trajectory(0))
            raise ZeroDivisionError
    assert list(read_shard(paths.checkpoint_shard("train", 1))[1]) == [make_trajectory(0)]


async def test_a_failed_write_fails_its_appends_and_leaves_no_half_line(paths, monkeypatch):
    real_write = os.write

    def full_disk(fd, rest):
        if len(rest) > 1000:
            return real_write(fd, rest[:1000])  # a full disk takes a part first
        raise OSError(28, "No space left on device")

    path = await write_unfinished(paths, 1)
    before = path.read_bytes()
    async with ShardWriter.resume(paths, "train", 1) as writer:
        monkeypatch.setattr(store.os, "write", full_disk)
        results = await asyncio.gather(
            *(writer.append(make_trajectory(i)) for i in range(1, 9)), return_exceptions=True
        )
        monkeypatch.undo()
        with pytest.raises(StoreError, match="No space left"):  # also once there is space again
            await writer.append(make_trajectory(9))
        with pytest.raises(StoreError, match="No space left"):
            await writer.complete()

    assert all(isinstance(result, StoreError) for result in results)
    assert "No space left on device; the episodes recorded before are intact" in str(results[0])
    assert path.read_bytes() == before
    async with ShardWriter.resume(paths, "train", 1) as writer:
        await writer.append(make_trajectory(1))


async def test_a_failed_fsync_is_not_acknowledged(paths, monkeypatch):
    def broken_disk(fd):
        raise OSError(5, "Input/output error")

    path = await write_unfinished(paths, 1)
    before = path.read_bytes()
    async with ShardWriter.resume(paths, "train", 1) as writer:
        monkeypatch.setattr(store.os, "fdatasync", broken_disk)
        with pytest.raises(StoreError, match="Input/output error"):
            await writer.append(make_trajectory(1))
    assert path.read_bytes() == before


async def test_a_file_size_limit_is_a_store_error(paths):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = await write_unfinished(paths, 1)
    before = path.read_bytes()
    async with ShardWriter.resume(paths, "train", 1) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        try:
            with pytest.raises(StoreError, match="File too large"):
                await writer.append(make_trajectory(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before


async def test_a_second_writer_of_the_same_shard_is_refused(paths):
    async with ShardWriter.create(paths, make_header()) as writer:
        with pytest.raises(StoreError, match="another process is writing it"):
            async with ShardWriter.resume(paths, "train", 1):
                pass
        with pytest.raises(StoreError, match="another process is writing it"):
            async with ShardWriter.create(paths, make_header()):
                pass
        await writer.append(make_trajectory(0))


DIES_WITH_THE_LOCK = """
import asyncio, os, sys
from pathlib import Path
from rl_agent.paths import RunPaths
from rl_agent.rollout.store import ShardWriter
from tests.unit.trajectories import make_header, make_trajectory

async def main():
    async with ShardWriter.create(RunPaths(Path(sys.argv[1])), make_header()) as writer:
        await writer.append(make_trajectory(0))
        os._exit(9)

asyncio.run(main())
"""


async def test_the_lock_of_a_dead_process_does_not_block(paths):
    argv = [sys.executable, "-c", DIES_WITH_THE_LOCK, str(paths.log_path)]
    dead = await asyncio.to_thread(subprocess.run, argv, timeout=30, cwd=PROJECT_ROOT)
    assert dead.returncode == 9
    async with ShardWriter.resume(paths, "train", 1) as writer:
        assert len(writer.completed) == 1
