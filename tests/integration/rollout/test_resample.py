"""Several nodes sample other groups in place of those of equal rewards: real processes, files, collectors."""

import json
import os
import signal
from contextlib import ExitStack

import pytest

from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.rollout.test_ranks import Ranks, complete
from tests.support.rollout_setup import write_tasks

SIBLINGS, BATCHES = 4, 3
OVERRIDES = (
    "+env_config.kinds.often_equal=tests.integration.rollout.environments:OftenEqual",
    "trainer=grpo_cpu",
    "pool=none",
    "trainer.loss.drop_uninformative=true",
    f"trainer.max_num_gen_batches={BATCHES}",
    f"rollout.group_size={SIBLINGS}",
)


@pytest.fixture
def ranks(tmp_path):
    with ExitStack() as stack:
        yield Ranks(tmp_path, stack, tasks=12)


def start(ranks: Ranks, number: int, **changes: object) -> None:
    for rank in range(number):
        plan = ranks.plan(*OVERRIDES, rank=rank, num_nodes=number, rank_weights=(1,) * number, **changes)
        write_tasks(plan, ranks.tasks, env="often_equal", difficulty="easy")
        ranks.start(plan)


def check(ranks: Ranks, account: str) -> None:
    """Every group is whole, and there are as many as it took."""
    rewards: dict[tuple[str, int], list[float]] = {}
    episodes = list(read_iteration(ranks.paths, "train", 1, TRAJECTORY))
    assert len({episode.key for episode in episodes}) == len(episodes)
    for episode in episodes:
        rewards.setdefault((episode.key.task_id, episode.key.group), []).append(episode.reward)
    assert {len(group) for group in rewards.values()} == {SIBLINGS}
    left_out = sum(len(set(group)) == 1 for group in rewards.values())
    count = min(ranks.tasks + left_out, BATCHES * ranks.tasks)
    assert left_out >= ranks.tasks // 2 and len(rewards) == count
    assert account == complete(count * SIBLINGS)
    record = json.loads(ranks.paths.metrics.read_text().splitlines()[-1])
    numbers = ("episodes", "uninformative_groups", "resampled_groups")
    added = count - ranks.tasks
    assert [record[f"train/{name}"] for name in numbers] == [len(episodes), left_out, added]


def test_two_nodes_replace_every_group_of_equal_rewards(ranks):
    start(ranks, 2, latency_s=0.05)
    status, account, log = ranks.wait(0)
    assert status == 0, log
    assert ranks.wait(1)[0] == 0
    check(ranks, account)


@pytest.mark.extended
def test_a_killed_ranks_groups_move_and_it_requests_no_more_than_recorded(ranks):
    start(ranks, 3, latency_s=0.4)
    ranks.wait_until(lambda: ranks.recorded()[1] > 2 * SIBLINGS)
    os.killpg(ranks.processes[1].pid, signal.SIGKILL)
    status, account, log = ranks.wait(0)
    assert status == 0, log
    assert ranks.wait(2)[0] == 0
    check(ranks, account)


@pytest.mark.extended
@pytest.mark.parametrize("recorded", [12, 60])
def test_after_a_killed_master_one_node_goes_on_with_the_requested_groups(ranks, recorded):
    """The master dies before anything was sampled in place of others, and in the middle of that."""
    start(ranks, 2, latency_s=0.4)
    ranks.wait_until(lambda: ranks.recorded().total() > recorded)
    os.killpg(ranks.processes[0].pid, signal.SIGKILL)
    ranks.wait(1)
    plan = ranks.plan(*OVERRIDES).model_copy(update={"attempt": 2})
    write_tasks(plan, ranks.tasks, env="often_equal", difficulty="easy")
    ranks.start(plan, "--resume", "required")
    status, account, log = ranks.wait(0)
    assert status == 0, log
    check(ranks, account)
