"""The store: what is acknowledged is on the disk, once, whatever happens in between."""

import asyncio
import dataclasses
import math
import os
import re
import resource
from pathlib import Path

import pytest

from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories import line, store
from rl_agent.rollout.trajectories.shard import read_header, read_shard, read_undamaged, whole_bytes
from rl_agent.rollout.trajectories.store import ShardWriter
from rl_agent.types import EpisodeKey, Status, Trajectory
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    return RunPaths(tmp_path / "log with space ü").checkpoint_shard("train", 1)


def create(growing: Path, **changes):
    return ShardWriter.create(growing, make_header(), **changes)


async def write_unfinished(growing: Path, count: int) -> Path:
    async with create(growing) as writer:
        for index in range(count):
            await writer.append(make_trajectory(index))
    return growing


def read(path: Path) -> list:
    return list(read_shard(path)[1])


async def test_a_closed_file_reads_back_what_was_appended(growing):
    episodes = [make_trajectory(0), make_trajectory(1, status=Status.TIMED_OUT, steps=())]

    async with create(growing) as writer:
        for episode in episodes:
            await writer.append(episode)
        await writer.close()

    assert read_header(growing) == make_header()
    assert read(growing) == episodes
    assert list(growing.parent.iterdir()) == [growing]


async def test_an_episode_is_on_the_disk_when_append_returns(growing):
    async with create(growing) as writer:
        await writer.append(make_trajectory(0))
        assert read(growing) == [make_trajectory(0)]


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


async def test_numbers_that_json_cannot_hold_survive(growing):
    episode = make_trajectory(0)
    generation = dataclasses.replace(
        episode.steps[0].generation, logprobs=(-math.inf,) * len(episode.steps[0].generation.token_ids)
    )
    episode = dataclasses.replace(
        episode, steps=(dataclasses.replace(episode.steps[0], generation=generation),)
    )
    async with create(growing) as writer:
        await writer.append(episode)
    assert read(growing) == [episode]


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def with_text(text: object):
    step = make_step()
    generation = dataclasses.replace(step.generation, text=text)
    return dataclasses.replace(make_trajectory(0), steps=(dataclasses.replace(step, generation=generation),))


def with_step(**changes):
    return dataclasses.replace(make_trajectory(0), steps=(dataclasses.replace(make_step(), **changes),))


def with_detail(**detail):
    return dataclasses.replace(make_trajectory(0), reward_detail=detail)


def with_extra(**extra):
    task = dataclasses.replace(make_trajectory(0).task, extra=extra)
    return dataclasses.replace(make_trajectory(0), task=task)


@pytest.mark.parametrize(
    ("odd", "message", "steps"),
    [
        (with_detail(judge=object()), "reward_detail.judge: a object is not JSON", 1),
        (with_detail(a=[1.0, math.nan]), r"reward_detail.a\[1\]: nan is not JSON", 1),
        (with_detail(a={1: 2}), "reward_detail.a: the key 1 is a int", 1),
        (with_detail(a="\ud800"), "reward_detail.a: holds half of a surrogate pair", 1),
        (with_detail(a=2**64), "reward_detail.a: the integer has more than 64 bits", 1),
        (with_detail(a=nested(205)), "reward_detail.a.*: nested deeper than 64 levels", 1),
        (with_extra(a=nested(300)), "task.extra.a.*: nested deeper than 64 levels", 1),
        (with_text("\udfff"), "cannot be written as JSON.*surrogates not allowed", 0),
        (with_text(None), r"steps.0.generation.text: Input should be a valid string", 0),
        (with_text(object()), "cannot be written as JSON", 0),
        (with_text(1), "steps.0.generation.text: Input should be a valid string", 0),
        (with_step(reward=None), "steps.0.reward: Input should be a valid number", 0),
        (with_step(prompt_token_ids=(1, None)), "steps.0.prompt_token_ids.1: Input should be a valid int", 0),
    ],
)
async def test_an_episode_that_no_reader_could_read_is_recorded_as_failed_alone(growing, odd, message, steps):
    others = [make_trajectory(1), make_trajectory(2)]
    async with create(growing) as writer, asyncio.TaskGroup() as group:
        jobs = [group.create_task(writer.append(one)) for one in (others[0], odd, others[1])]
    recorded = [job.result() for job in jobs]

    assert read(growing) == recorded
    assert recorded[::2] == others
    failed = recorded[1]
    assert (failed.key, failed.status, failed.reward) == (odd.key, Status.FAILED, None)
    assert failed.failure.kind == "UnwritableEpisode"
    assert re.search(message, failed.failure.message)
    assert len(failed.steps) == steps


@pytest.mark.parametrize(
    "fine",
    [
        with_text("null null null"),
        with_step(prompt_token_ids=[1, 2]),
        with_extra(a=None, b=[None]),
        with_detail(a=None),
        dataclasses.replace(make_trajectory(0), reward=1),
    ],
)
async def test_an_episode_that_only_looks_odd_is_recorded_as_it_is(growing, fine):
    async with create(growing) as writer:
        assert await writer.append(fine) is fine
    (found,) = read(growing)
    assert found.status is Status.COMPLETED
    assert dataclasses.replace(found, steps=()) == dataclasses.replace(fine, steps=())


async def test_a_record_that_is_far_too_long_is_one_failed_episode(growing, monkeypatch):
    monkeypatch.setattr(line, "MAX_LINE_BYTES", 5_000)
    async with create(growing) as writer:
        failed = await writer.append(with_text("x" * 5_000))
    assert read(growing) == [failed]
    assert "more than 5,000" in failed.failure.message
    assert failed.steps == ()


async def test_a_bug_in_the_encoding_ends_its_append_and_no_other_waits_for_ever(growing, monkeypatch):
    real = store.recorded
    monkeypatch.setattr(store, "recorded", lambda one: 1 / 0 if one.seed == 1 else real(one))
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


async def test_resume_goes_on_where_it_stopped(growing):
    await write_unfinished(growing, 2)
    async with ShardWriter.resume(growing) as writer:
        await writer.append(make_trajectory(2))
    assert read(growing) == [make_trajectory(i) for i in range(3)]


@pytest.mark.parametrize("kept_bytes", [1, 200, -1])
async def test_a_torn_last_line_is_skipped_by_readers_and_cut_by_resume(growing, kept_bytes):
    await write_unfinished(growing, 2)
    lines = growing.read_bytes().splitlines(keepends=True)
    growing.write_bytes(b"".join(lines[:2]) + lines[2][:kept_bytes])

    assert read(growing) == [make_trajectory(0)]
    async with ShardWriter.resume(growing) as writer:
        assert growing.read_bytes() == b"".join(lines[:2])
        await writer.append(make_trajectory(1))
    assert growing.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("torn_bytes", [0, 1, 70_000, 200_000])
def test_the_end_of_the_last_whole_line_is_found_however_long_the_rest_is(tmp_path, torn_bytes):
    path = tmp_path / "shard"
    path.write_bytes(b"one\ntwo\n" + b"x" * torn_bytes)
    assert whole_bytes(path) == 8
    path.write_bytes(b"x" * torn_bytes)
    assert whole_bytes(path) == 0


@pytest.mark.parametrize("bad", [b"{}\n", b'{"key": \n', b"\0\0\0\n"])
async def test_a_bad_line_elsewhere_is_named_by_file_and_number(growing, bad):
    await write_unfinished(growing, 3)
    lines = growing.read_bytes().splitlines(keepends=True)
    growing.write_bytes(lines[0] + lines[1] + bad + lines[3])
    with pytest.raises(StoreError, match=r"iteration1\.checkpoint:3: "):
        read(growing)


@pytest.mark.parametrize("bad", [b"{}\n", b"\0\0\0\n", b'{"key'])
async def test_the_file_of_a_dead_node_counts_up_to_its_first_bad_line(growing, bad):
    await write_unfinished(growing, 3)
    lines = growing.read_bytes().splitlines(keepends=True)
    growing.write_bytes(lines[0] + lines[1] + bad + (lines[3] if bad.endswith(b"\n") else b""))

    assert read_undamaged(growing) == ([EpisodeKey("task-0", 0, 0)], len(lines[0] + lines[1]))


async def test_a_newer_schema_is_refused(growing):
    await write_unfinished(growing, 1)
    newer = growing.read_bytes().replace(b'"schema_version":3', b'"schema_version":4', 1)
    growing.write_bytes(re.sub(rb',"crc32":"\w+"', b"", newer, count=1))
    with pytest.raises(StoreError, match=":1: schema version 4 is newer than 3"):
        read_header(growing)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        read_shard(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="holds no header"):
        read_shard(tmp_path / "empty")


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


async def test_a_file_size_limit_is_a_store_error(growing):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = (await write_unfinished(growing, 1)).read_bytes()
    async with ShardWriter.resume(growing) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        try:
            with pytest.raises(StoreError, match="File too large"):
                await writer.append(make_trajectory(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert growing.read_bytes() == before
