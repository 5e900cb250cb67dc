"""The next rollout begins in the places that the tail of the present one frees, with a simulated engine."""

import asyncio
import json
from contextlib import asynccontextmanager

from rl_agent.cluster.member.member import Member
from rl_agent.rollout.run import open_rollouts
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.types import EpisodeCounts, Status
from tests.integration.rollout.held_episodes import (
    PLACES,
    TASKS,
    Held,
    assignment,
    next_of,
    recorded,
    until,
)


@asynccontextmanager
async def tail_of_the_first(plan, rollouts):
    """Give the job of the first iteration, of which one episode is left, once the second has all others."""
    async with asyncio.TaskGroup() as jobs:
        job = jobs.create_task(rollouts.run(assignment(plan, 1), Member.alone(plan)))
        await until(lambda: len(recorded(plan, 2)) == TASKS)
        await until(lambda: len(recorded(plan, 1)) == TASKS - 1)
        assert 1 not in plan.paths.iterations("train")
        yield job


async def test_the_next_rollout_begins_in_the_places_that_the_tail_frees(held_plan):
    counts = EpisodeCounts(TASKS, {Status.COMPLETED: TASKS})
    member = Member.alone(held_plan)
    async with open_rollouts(held_plan.config, next_of) as rollouts:
        async with tail_of_the_first(held_plan, rollouts) as job:
            assert 2 not in held_plan.paths.iterations("train"), "it ends after its order"
            Held.go_on.set()
        assert job.result() == counts
        assert await rollouts.run(assignment(held_plan, 2), member) == counts
        assert await rollouts.run(assignment(held_plan, 3), member) == counts
    assert Held.most_alive == PLACES
    for iteration in (1, 2, 3):
        keys = [episode.key for episode in read_iteration(held_plan.paths, "train", iteration, TRAJECTORY)]
        assert len(keys) == len(set(keys)) == TASKS
    assert [path.suffix for path in held_plan.paths.trajectory_dir("train").iterdir()].count(
        ".checkpoint"
    ) == 0


async def test_rollouts_begin_early_one_after_the_other_as_far_as_they_may(held_plan):
    member = Member.alone(held_plan)
    async with open_rollouts(held_plan.config, next_of) as rollouts:
        async with tail_of_the_first(held_plan, rollouts):
            await until(lambda: len(recorded(held_plan, 3)) == TASKS)
            assert not held_plan.paths.iterations("train")
            Held.go_on.set()
        for iteration in (2, 3):
            await rollouts.run(assignment(held_plan, iteration), member)
    assert Held.most_alive == PLACES
    assert sorted(held_plan.paths.iterations("train")) == [1, 2, 3]
    lines = held_plan.paths.metrics.read_text().splitlines()
    ordered, *early = [json.loads(line)["train/engine_tokens_per_s"] for line in lines]
    assert ordered > 0
    assert early == [0, 0], "all was sampled while the first was ordered"


async def test_an_early_rollout_that_is_broken_off_goes_on_once_it_is_ordered(held_plan):
    async with open_rollouts(held_plan.config, next_of) as rollouts, tail_of_the_first(held_plan, rollouts):
        Held.go_on.set()
    with held_plan.paths.checkpoint_shard("train", 2).open("rb+") as file:
        file.truncate(file.seek(0, 2) - 20)  # as a kill in mid-write would leave it
    async with open_rollouts(held_plan.config) as rollouts:
        counts = await rollouts.run(assignment(held_plan, 2), Member.alone(held_plan))
    assert counts.submitted == TASKS and counts.is_all_completed
    assert len(set(recorded(held_plan, 2))) == len(recorded(held_plan, 2)) == TASKS
