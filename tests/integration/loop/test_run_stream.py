"""`trainer=grpo` with a real engine, a killed trainer and a stopped run: every episode is trained on once."""

import json
import os
import signal

import pytest

from rl_agent.monitor import metrics
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.real_run import Run

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1500)]

TASKS, SIBLINGS, LIMIT_S = 12, 2, 900
STREAM = (
    "--rl-phase", "both", "--no-final-eval",
    "--eval-interval", "2", "--max-iterations", "2", "trainer=grpo_cpu", "pool=elastic",
    "pool.port=0", f"rollout.group_size={SIBLINGS}", "trainer.mini_batches=3",
)  # fmt: skip
GONE_S = 75.0
"""A trainer that saves is given a minute."""


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path) as loop_run:
        loop_run.change(
            {"env_config.train_tasks_rollout_size": TASKS, "env_config.test_tasks_rollout_size": 4}
        )
        yield loop_run


def steps(run: Run) -> dict[int, dict]:
    """The optimizer steps; one that was made again after a kill counts once."""
    return {r["update_step"]: r for r in metrics.read(run.paths.metrics) if "update_step" in r}


def test_a_killed_trainer_and_a_stopped_run_lose_nothing(run):
    process = run.start(*STREAM)
    run.wait_until(lambda: len(steps(run)) >= 1, process, LIMIT_S)  # while the rollout goes on
    os.kill(run.leader("trainer"), signal.SIGKILL)
    run.wait_until(lambda: len(steps(run)) >= 4, process, LIMIT_S)  # in the second iteration
    process.terminate()
    process.wait(GONE_S)
    assert process.returncode == 143

    process = run.start(*STREAM, "--resume")
    assert process.wait(LIMIT_S) == 0, (run.home / "output").read_text()[-4000:]

    assert run.processes() == []
    assert run.paths.model_link.resolve().name == "version-000002"
    assert sum(step["trainer/episodes"] for step in steps(run).values()) == 2 * TASKS * SIBLINGS
    assert not any("trainer/rejected_groups/too_stale" in step for step in steps(run).values())
    for iteration in (1, 2):
        episodes = list(read_iteration(run.paths, "train", iteration, TRAJECTORY))
        assert len(episodes) == TASKS * SIBLINGS
        assert {e.weight_version_min for e in episodes} == {iteration - 1}
        assert {e.weight_version_max for e in episodes} == {iteration - 1}


@pytest.mark.parametrize("streamed", [True, False])
def test_every_step_is_full_when_groups_of_equal_rewards_are_replaced(run, streamed):
    """Trainer and run are stopped on the way; half of the tasks reward all attempts alike."""
    groups, siblings, steps_each = 8, 4, 2
    tasks = (
        {"task_id": str(n), "prompt": f"{n} + 1 =", "env": "often_equal", "difficulty": "easy"}
        for n in range(60)
    )
    (run.home / "data" / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    run.change({"env_config.train_tasks_rollout_size": groups})
    words = (
        *STREAM[:8], f"rollout.group_size={siblings}", f"trainer.mini_batches={steps_each}",
        "trainer.loss.drop_uninformative=true", "trainer.max_num_gen_batches=5",
        f"trainer.streamed={streamed}",
        "+env_config.kinds.often_equal=tests.integration.rollout.environments:OftenEqual",
    )  # fmt: skip

    process = run.start(*words)
    # The rollout is in the middle of what it samples in place of others.
    run.wait_until(lambda: len(run.finished()) > groups * siblings, process, LIMIT_S)
    os.kill(run.leader("trainer"), signal.SIGKILL)
    run.wait_until(lambda: len(steps(run)) > steps_each, process, LIMIT_S)  # in the second iteration
    process.terminate()
    process.wait(GONE_S)
    process = run.start(*words, "--resume")
    assert process.wait(LIMIT_S) == 0, (run.home / "output").read_text()[-4000:]

    assert [step["trainer/episodes"] for step in steps(run).values()] == [groups * siblings // steps_each] * 4
    for iteration in (1, 2):
        rewards: dict[tuple[str, int], list[float]] = {}
        for episode in read_iteration(run.paths, "train", iteration, TRAJECTORY):
            rewards.setdefault((episode.key.task_id, episode.key.group), []).append(episode.reward)
        assert {len(group_rewards) for group_rewards in rewards.values()} == {siblings}
        assert sum(len(set(group_rewards)) > 1 for group_rewards in rewards.values()) == groups < len(rewards)
