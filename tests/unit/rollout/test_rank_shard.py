"""A rank's own file: a name nobody else has, begun with the first episode, each episode once."""

import asyncio
from pathlib import Path

import pytest

from rl_agent.errors import StoreError
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Ledger
from rl_agent.rollout.trajectories.shard import read_shard
from tests.unit.rollout.master_rollouts import make_sample
from tests.unit.rollout.trajectories_made import make_header, make_trajectory

SAMPLE = make_sample(20)


def shard_of(paths, rank=2, *, is_sole=False, ledger=None, **changes):
    ledger = ledger or Ledger(SAMPLE)
    return RankShard(paths, make_header(), ledger, rank=rank, is_sole=is_sole, fsync=False, **changes)


async def record(shard: RankShard, *indices: int) -> Path:
    async with shard:
        for index in indices:
            await shard.append(make_trajectory(index))
    return shard.shard


async def test_without_an_episode_there_is_no_file(paths):
    async with shard_of(paths) as shard:
        await shard.close()
    assert shard.shard is None
    assert paths.shards("train", 1) == []


async def test_the_only_node_names_no_rank_and_others_do(paths):
    assert await record(shard_of(paths, 0, is_sole=True), 0) == paths.shard("train", 1)
    assert await record(shard_of(paths, 2), 0) == paths.shard("train", 1, rank=2)


@pytest.mark.parametrize("name", ["shard", "checkpoint_shard"])
async def test_a_rank_that_began_before_takes_the_next_part(paths, name):
    taken = getattr(paths, name)("train", 1, rank=2)
    taken.parent.mkdir(parents=True)
    taken.touch()
    assert await record(shard_of(paths), 0) == paths.shard("train", 1, rank=2, part=2)
    assert await record(shard_of(paths), 0) == paths.shard("train", 1, rank=2, part=3)
    assert taken.read_bytes() == b""


async def test_two_that_begin_at_once_get_two_files(paths):
    async with shard_of(paths) as first, shard_of(paths) as second:
        await asyncio.gather(first.append(make_trajectory(0)), second.append(make_trajectory(1)))
    files = [paths.checkpoint_shard("train", 1, rank=2, part=part) for part in (1, 2)]
    recorded = [list(read_shard(file)[1]) for file in files]
    assert sorted(episode.seed for (episode,) in recorded) == [0, 1]


async def test_first_episodes_that_end_together_begin_one_file_named_once(paths):
    names = []
    async with shard_of(paths, on_begun=names.append) as shard:
        await asyncio.gather(*(shard.append(make_trajectory(index)) for index in range(8)))
    assert names == ["train_trajectories.jsonl.iteration1_rank_2"]
    assert shard.episodes == 8


async def test_all_that_wait_for_a_file_have_it_in_the_turn_in_which_it_is_begun(paths):
    async with shard_of(paths) as shard:
        waiting = [asyncio.ensure_future(shard._begin()) for _ in range(20)]
        await waiting[0]
        await asyncio.sleep(0)
        assert all(job.done() for job in waiting)


async def test_an_episode_is_recorded_only_once_also_after_a_resume(paths):
    ledger = Ledger(SAMPLE)
    begun = await record(shard_of(paths, ledger=ledger), 0)
    async with shard_of(paths, ledger=ledger) as shard:
        await shard.resume(begun, episodes=1)
        with pytest.raises(StoreError, match="episode task-0:0:0 of iteration 1 was recorded before"):
            await shard.append(make_trajectory(0))
        await shard.append(make_trajectory(1))
        waiting = asyncio.ensure_future(shard.append(make_trajectory(2)))
        await asyncio.sleep(0)
        with pytest.raises(StoreError, match="task-2:0:0 of iteration 1 was recorded before"):
            await shard.append(make_trajectory(2))
        await waiting

    assert shard.episodes == 3
    assert ledger.missing() == list(range(3, 20))


async def test_an_episode_of_another_sample_is_refused(paths):
    async with shard_of(paths) as shard:
        with pytest.raises(StoreError, match="task-99:0:0 is not of this iteration's sample"):
            await shard.append(make_trajectory(99))


async def test_unwritten_episodes_may_be_retried_and_are_not_counted(paths):
    ledger = Ledger(SAMPLE)
    paths.log_path.mkdir()
    paths.trajectory_dir("train").touch()  # no folder can be made
    async with shard_of(paths, ledger=ledger) as shard:
        with pytest.raises(StoreError, match="train_trajectories: cannot be made: File exists"):
            await shard.append(make_trajectory(0))
        paths.trajectory_dir("train").unlink()
        await shard.append(make_trajectory(0))
    assert ledger.missing() == list(range(1, 20))
