"""Files of an unfinished iteration on the disk are taken over, or set aside."""

from dataclasses import replace

import pytest

from rl_agent.errors import ConfigError, RetryLater
from rl_agent.rollout.trajectories.line import TRAJECTORY, to_line
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.unit.rollout.master_rollouts import (
    HEADER,
    OTHER_RUN,
    SIZE,
    FakeWork,
    manifest,
    names,
    run_master,
    write,
)
from tests.unit.rollout.trajectories_made import make_trajectory


async def test_a_fresh_start_sets_every_file_aside(paths):
    write(paths.checkpoint_shard("train", 1), 0)
    write(paths.checkpoint_shard("train", 1, rank=1), 1, header=OTHER_RUN)
    _, work = await run_master(paths)

    assert work.published == list(range(SIZE))
    stamp = "20231114T221320.000000Z"
    aside = [f".checkpoint.aside-{stamp}", f"_rank_1.checkpoint.aside-{stamp}"]
    assert names(paths) == ["", aside[0], ".manifest.json", aside[1]]
    assert manifest(paths).keys() == {""}


async def test_one_node_continues_its_file_and_one_of_several_begins_another(paths):
    write(paths.checkpoint_shard("train", 1), 0)
    write(paths.checkpoint_shard("train", 1, rank=0), 1)
    await run_master(paths, resume=True, num_nodes=2)

    counts = {name: entry["episodes"] for name, entry in manifest(paths).items()}
    assert counts == {"": 1, "_rank_0": 1, "_rank_0_part_2": 10}
    assert names(paths) == ["", ".manifest.json", "_rank_0", "_rank_0_part_2"]


async def test_a_node_of_an_earlier_start_that_writes_on_is_not_listened_to(paths):
    class Waking(FakeWork):
        async def publish(self, groups, **terms):
            await super().publish(groups, **terms)
            with asleep.open("ab") as file:
                file.write(to_line(replace(make_trajectory(5), reward=0.25)))

    asleep = write(paths.checkpoint_shard("train", 1, rank=1), 0)
    await run_master(paths, resume=True, work=Waking())
    episodes = read_iteration(paths, "train", 1, TRAJECTORY)
    rewards = {episode.seed: episode.reward for episode in episodes}
    assert rewards == dict.fromkeys(range(SIZE), 1.0)


async def test_a_lost_ranks_records_are_counted_by_its_file(paths):
    shard = write(paths.checkpoint_shard("train", 1, rank=1), 4, 2, torn=b"{")
    work = FakeWork()
    with pytest.raises(RetryLater):
        await run_master(paths, work=work, error=RetryLater("x"), must_exist=False, resume=True)

    assert work.on_lost(shard.name.removesuffix(".checkpoint")) == (shard.stat().st_size - 1, {2, 4})
    assert work.on_lost("train_trajectories.jsonl.iteration1_rank_7") == (0, set())


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"sample_digest": "x"}, "was begun with another train sample than that of now; put it back"),
        ({"weight_version": 3}, "was begun with weight version 3; the engine has 0"),
    ],
)
async def test_files_of_another_sample_or_model_are_refused(paths, header, message):
    shard = write(paths.checkpoint_shard("train", 1, rank=1), 0, header=replace(HEADER, **header))
    with pytest.raises(ConfigError, match=message):
        await run_master(paths, resume=True)
    assert shard.exists()
