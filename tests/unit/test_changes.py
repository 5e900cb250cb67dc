"""What a resumed run may be given anew, and what not in the middle of an iteration."""

import json
from pathlib import Path

import pytest

from rl_agent.cluster.schedule import Work
from rl_agent.config import Plan
from rl_agent.errors import ConfigError
from rl_agent.plan.changes import check_changes
from rl_agent.trainer.states import STATE
from tests.integration.tiny_model import make_plan

STREAMING = ("trainer=grpo_cpu", "pool=elastic", "rollout.group_size=4", "trainer.mini_batches=4")
SHUFFLED = (*STREAMING, "trainer.batch.order=shuffled")
RESAMPLED = (*STREAMING, "trainer.loss.drop_uninformative=true")
SECOND = Work(2, ("rollout", "update"))


def plan(tmp_path: Path, *overrides: str) -> Plan:
    return make_plan(tmp_path, tmp_path / "base", *overrides)


def record(before: Plan, iteration: int, *, is_finished: bool) -> None:
    paths = before.paths
    path = paths.shard("train", iteration) if is_finished else paths.checkpoint_shard("train", iteration)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def trained_on(before: Plan, iteration: int) -> None:
    folder = before.paths.streaming / "checkpoints" / f"step-{iteration}"
    folder.mkdir(parents=True)
    (folder / STATE).write_text(json.dumps({"iteration": iteration}))


def in_mid_iteration(tmp_path: Path, *overrides: str) -> Plan:
    """Iteration 1 is done; of 2 all episodes are recorded, and the trainer is at work on them."""
    before = plan(tmp_path, *overrides)
    record(before, 1, is_finished=True)
    trained_on(before, 1)
    record(before, 2, is_finished=True)
    return before


@pytest.mark.parametrize(
    ("begun_with", "change", "words"),
    [
        (STREAMING, "rollout.group_size=8", "rollout.group_size=4, not 8"),
        (STREAMING, "seed=7", "seed=0, not 7"),
        (STREAMING, "env_config.train_tasks_rollout_size=3", "env_config.train_tasks_rollout_size="),
        (STREAMING, "trainer.batch.order=shuffled", "trainer.batch.order=arrival, not shuffled"),
        (SHUFFLED, "trainer.batch.order=arrival", "trainer.batch.order=shuffled, not arrival"),
        (SHUFFLED, "trainer.mini_batches=2", "trainer.mini_batches=4, not 2"),
        (STREAMING, "trainer.loss.drop_uninformative=true", "drop_uninformative=False, not True"),
        (RESAMPLED, "trainer.max_num_gen_batches=5", "trainer.max_num_gen_batches=3, not 5"),
    ],
)
def test_samples_and_their_deal_stay_as_they_were_in_the_middle_of_an_iteration(
    tmp_path, begun_with, change, words
):
    before = in_mid_iteration(tmp_path, *begun_with)
    with pytest.raises(ConfigError, match="iteration 2 was begun with") as refused:
        check_changes(before, plan(tmp_path, *begun_with, change), SECOND)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("trainer.nproc_per_node=2", "trainer.nproc_per_node=2 (was None)"),
        ("trainer.parallel.shard_size=1", "trainer.parallel.shard_size=1 (was None)"),
        ("trainer.mini_batches=2", "trainer.mini_batches=2 (was 4)"),
        ("trainer.batch.token_budget=512", "trainer.batch.token_budget=512 (was "),
        ("trainer.max_num_gen_batches=5", "trainer.max_num_gen_batches=5 (was 3)"),
    ],
)
def test_what_does_not_change_samples_may_change_at_any_time_and_is_said(tmp_path, change, said):
    before = in_mid_iteration(tmp_path, *STREAMING)
    line = check_changes(before, plan(tmp_path, *STREAMING, change), SECOND)
    assert line.startswith("--resume: goes on with ") and said in line


def test_between_two_iterations_everything_may_change(tmp_path):
    before = plan(tmp_path, *STREAMING)
    record(before, 1, is_finished=True)
    trained_on(before, 1)
    line = check_changes(before, plan(tmp_path, *STREAMING, "rollout.group_size=8", "seed=7"), SECOND)
    assert line == "--resume: goes on with rollout.group_size=8 (was 4), seed=7 (was 0)"


def test_a_rollout_that_is_ahead_of_the_trainer_counts_for_what_it_was_begun_with(tmp_path):
    before = plan(tmp_path, *STREAMING)
    record(before, 1, is_finished=True)
    with pytest.raises(ConfigError, match="iteration 1 was begun with seed"):
        check_changes(before, plan(tmp_path, *STREAMING, "seed=7"), SECOND)


def test_a_rollout_in_turn_with_training_keeps_its_samples_until_it_is_done(tmp_path):
    before = plan(tmp_path)
    changed = plan(tmp_path, "seed=7")
    record(before, 2, is_finished=False)
    with pytest.raises(ConfigError, match="iteration 2 was begun with seed"):
        check_changes(before, changed, SECOND)
    assert "seed=7" in check_changes(before, changed, Work(3, ("rollout", "update")))


def test_nothing_is_said_where_nothing_changed_and_what_a_node_has_for_itself_is_nobodys_business(tmp_path):
    before = in_mid_iteration(tmp_path, *STREAMING)
    assert check_changes(before, plan(tmp_path, *STREAMING), SECOND) is None
    assert check_changes(before, plan(tmp_path, *STREAMING, "engine.max_num_seqs=3"), SECOND) is None


def test_many_changes_are_one_line(tmp_path):
    before = plan(tmp_path, *STREAMING)
    others = [f"trainer.loss.clip_{side}=0.{n}" for n, side in enumerate(("low", "high"), 3)]
    others += [f"trainer.optimizer.beta{n}=0.5" for n in (1, 2)]
    others += ["seed=7", "rollout.group_size=8", "trainer.mini_batches=9"]
    line = check_changes(before, plan(tmp_path, *STREAMING, *others), None)
    assert line.endswith(" and 2 more keys changed") and "\n" not in line
