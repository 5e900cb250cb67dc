"""Recorded trajectories are found, whichever files hold them."""

from rl_agent.rollout.trajectories.browse import Filter, find
from rl_agent.rollout.trajectories.manifest import write_manifest
from tests.unit.rollout.master_rollouts import write
from tests.unit.rollout.trajectories.test_manifest import entry


def test_browsing_sees_finished_and_unfinished_iterations_of_several_nodes(paths):
    shards = [write(paths.checkpoint_shard("train", 1, rank=rank), rank, 2) for rank in (0, 1)]
    assert [episode.seed for episode in find(paths, Filter(split="train"))] == [0, 2, 1]
    write_manifest(paths, "train", 1, [entry(shard, 2) for shard in shards])
    assert [episode.seed for episode in find(paths, Filter(split="train"))] == [0, 2, 1]
