"""Files of trajectories are read up to what is whole, and what is bad is named."""

from dataclasses import replace

import pytest

from rl_agent.errors import StoreError
from rl_agent.rollout.trajectories.shard import (
    read_header,
    read_shard,
    read_undamaged,
    start_shard,
    whole_bytes,
)
from rl_agent.rollout.trajectories.store import ShardWriter
from rl_agent.types import EpisodeKey
from tests.unit.rollout.trajectories.growing_files import read, write_unfinished
from tests.unit.rollout.trajectories_made import make_header, make_trajectory


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


async def with_third_line(growing, bad):
    """Write three episodes, the second of them as `bad`, and return the lines as they were."""
    await write_unfinished(growing, 3)
    lines = growing.read_bytes().splitlines(keepends=True)
    growing.write_bytes(lines[0] + lines[1] + bad + (lines[3] if bad.endswith(b"\n") else b""))
    return lines


@pytest.mark.parametrize("bad", [b"{}\n", b'{"key": \n', b"\0\0\0\n"])
async def test_a_bad_line_elsewhere_is_named_by_file_and_number(growing, bad):
    await with_third_line(growing, bad)
    with pytest.raises(StoreError, match=r"iteration1\.checkpoint:3: "):
        read(growing)


@pytest.mark.parametrize("bad", [b"{}\n", b"\0\0\0\n", b'{"key'])
async def test_the_file_of_a_dead_node_counts_up_to_its_first_bad_line(growing, bad):
    lines = await with_third_line(growing, bad)
    assert read_undamaged(growing) == ([EpisodeKey("task-0", 0, 0)], len(lines[0] + lines[1]))


def test_a_newer_schema_is_refused(growing):
    start_shard(growing, replace(make_header(), schema_version=4))
    with pytest.raises(StoreError, match=":1: schema version 4 is newer than 3"):
        read_header(growing)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        read_shard(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="holds no header"):
        read_shard(tmp_path / "empty")
