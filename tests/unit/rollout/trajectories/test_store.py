"""The store: what is acknowledged is on the disk, once, whatever happens in between."""

import asyncio
import os

import pytest

from rl_agent.errors import StoreError
from rl_agent.rollout.trajectories import store
from rl_agent.rollout.trajectories.shard import read_header
from rl_agent.rollout.trajectories.store import ShardWriter
from rl_agent.types import Status, Trajectory
from tests.unit.rollout.trajectories.growing_files import create, read, write_unfinished
from tests.unit.rollout.trajectories_made import make_header, make_trajectory


async def test_an_episode_is_on_the_disk_when_append_returns(growing):
    episodes = [make_trajectory(0), make_trajectory(1, status=Status.TIMED_OUT, steps=())]
    async with create(growing) as writer:
        for number, episode in enumerate(episodes, 1):
            await writer.append(episode)
            assert read(growing) == episodes[:number]
        await writer.close()

    assert read_header(growing) == make_header()
    assert read(growing) == episodes
    assert list(growing.parent.iterdir()) == [growing]


async def test_appends_that_wait_together_share_an_fsync(growing, monkeypatch):
    syncs = []
    real = os.fdatasync
    monkeypatch.setattr(store.os, "fdatasync", lambda fd: (syncs.append(fd), real(fd)))

    async with create(growing) as writer, asyncio.TaskGroup() as group:
        for index in range(500):
            group.create_task(writer.append(make_trajectory(index)))

    assert 1 <= len(syncs) < 50
    assert len(read(growing)) == 500


async def test_without_fsync_nothing_waits_for_the_disk(growing, monkeypatch):
    monkeypatch.setattr(store.os, "fdatasync", lambda fd: pytest.fail("synced"))
    async with create(growing, fsync=False) as writer:
        await writer.append(make_trajectory(0))
    assert len(read(growing)) == 1


async def test_a_bug_in_the_encoding_ends_its_append_and_no_other_waits_for_ever(growing, monkeypatch):
    real = store.recorded
    monkeypatch.setattr(store, "recorded", lambda episode: 1 / 0 if episode.seed == 1 else real(episode))
    async with create(growing) as writer:
        results = await asyncio.gather(
            *(writer.append(make_trajectory(index)) for index in range(3)), return_exceptions=True
        )
    assert [type(result) for result in results] == [Trajectory, ZeroDivisionError, Trajectory]
    assert read(growing) == [make_trajectory(0), make_trajectory(2)]


async def test_a_cancelled_append_is_written_all_the_same(growing):
    async with create(growing) as writer:
        job = asyncio.ensure_future(writer.append(make_trajectory(0)))
        await asyncio.sleep(0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
    assert read(growing) == [make_trajectory(0)]


async def test_a_name_that_is_taken_is_not_written_to(growing):
    old = (await write_unfinished(growing, 2)).read_bytes()
    with pytest.raises(FileExistsError):
        async with create(growing):
            pass
    assert growing.read_bytes() == old


async def test_a_closed_writer_refuses_instead_of_hanging(growing):
    async with create(growing) as writer:
        await writer.close()
        with pytest.raises(StoreError, match="is closed"):
            await writer.append(make_trajectory(0))
    with pytest.raises(StoreError, match="is closed"):
        await writer.append(make_trajectory(0))


async def test_an_error_in_the_body_keeps_what_was_appended(growing):
    with pytest.raises(ZeroDivisionError):
        async with create(growing) as writer:
            await writer.append(make_trajectory(0))
            raise ZeroDivisionError
    assert read(growing) == [make_trajectory(0)]


async def test_a_failed_write_fails_its_appends_and_leaves_no_half_line(growing, monkeypatch):
    real_write = os.write

    def full_disk(fd, rest):
        if len(rest) > 1000:
            return real_write(fd, rest[:1000])  # a full disk takes a part first
        raise OSError(28, "No space left on device")

    before = (await write_unfinished(growing, 1)).read_bytes()
    async with ShardWriter.resume(growing) as writer:
        monkeypatch.setattr(store.os, "write", full_disk)
        results = await asyncio.gather(
            *(writer.append(make_trajectory(i)) for i in range(1, 9)), return_exceptions=True
        )
        monkeypatch.undo()
        with pytest.raises(StoreError, match="No space left"):  # also once there is space again
            await writer.append(make_trajectory(9))
        with pytest.raises(StoreError, match="No space left"):
            await writer.close()

    assert all(isinstance(result, StoreError) for result in results)
    assert "No space left on device; the episodes recorded before are intact" in str(results[0])
    assert growing.read_bytes() == before
    async with ShardWriter.resume(growing) as writer:
        await writer.append(make_trajectory(1))


async def test_a_failed_fsync_is_not_acknowledged(growing, monkeypatch):
    def broken_disk(fd):
        raise OSError(5, "Input/output error")

    before = (await write_unfinished(growing, 1)).read_bytes()
    async with ShardWriter.resume(growing) as writer:
        monkeypatch.setattr(store.os, "fdatasync", broken_disk)
        with pytest.raises(StoreError, match="Input/output error"):
            await writer.append(make_trajectory(1))
    assert growing.read_bytes() == before
