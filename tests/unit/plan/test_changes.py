"""A resumed run may be given some settings anew, and others not in the middle of an iteration."""

from pathlib import Path

import pytest

from rl_agent.cluster.protocol.schedule import PendingPhases
from rl_agent.config.plan import Plan
from rl_agent.errors import ConfigError
from rl_agent.plan.changes import check_changes
from rl_agent.trainer.grpo.checkpoint.states import write_state
from tests.integration.tiny_model import make_plan

STREAMING = ("trainer=grpo_cpu", "pool=elastic", "rollout.group_size=4", "trainer.mini_batches=4")
SHUFFLED = (*STREAMING, "trainer.batch.order=shuffled")
RESAMPLED = (*STREAMING, "trainer.loss.drop_uninformative=true")
SECOND = PendingPhases(2, ("rollout", "update"))


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
    write_state(folder, {"iteration": iteration})


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
def test_samples_and_their_deal_are_fixed_within_an_iteration(tmp_path, begun_with, change, words):
    before = in_mid_iteration(tmp_path, *begun_with)
    with pytest.raises(ConfigError, match="iteration 2 was begun with") as refused:
        check_changes(before, plan(tmp_path, *begun_with, change), SECOND)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ("trainer.nproc_per_node=2", "trainer.nproc_per_node=2 (was None)"),
        ("trainer.parallel.shard_size=1", "trainer.parallel.shard_size=1 (was None)"),
        ("trainer.mini_batches=2", "trainer.mini_batches=2 (was 4)"),
        ("trainer.batch.token_budget=512", "trainer.batch.token_budget=512 (was "),
        ("trainer.max_num_gen_batches=5", "trainer.max_num_gen_batches=5 (was 3)"),
    ],
)
def test_settings_without_effect_on_samples_may_change_with_a_note(tmp_path, change, note):
    before = in_mid_iteration(tmp_path, *STREAMING)
    line = check_changes(before, plan(tmp_path, *STREAMING, change), SECOND)
    assert line.startswith("--resume: continues with ") and note in line


JUDGED = ("rollout.reward=judge",)


@pytest.mark.parametrize(
    ("begun_with", "change", "words"),
    [
        ((), "policy_config.temperature=0.7", "policy_config.temperature=1.0, not 0.7"),
        ((), "policy_config.top_p=0.9", "policy_config.top_p=1.0, not 0.9"),
        ((), "policy_config.max_new_tokens=7", "policy_config.max_new_tokens=3072, not 7"),
        ((), "policy_config.system_prompt=Think.", "policy_config.system_prompt=None, not Think."),
        (
            (),
            "+model_config.chat_template_kwargs.enable_thinking=false",
            "model_config.chat_template_kwargs.enable_thinking=unset, not False",
        ),
        ((), "+env_config.kwargs.math.strict=true", "env_config.kwargs.math.strict=unset, not True"),
        ((), "rollout.reward=judge", "rollout.reward=rule, not judge"),
        (JUDGED, "openai_config.model=other", "openai_config.criterion.model="),
        (
            JUDGED,
            "+openai_config.evaluation.temperature=0.5",
            "openai_config.evaluation.temperature=0.0, not 0.5",
        ),
        (STREAMING, "policy_config.system_prompt=Think.", "policy_config.system_prompt=None, not Think."),
    ],
)
def test_the_rules_of_episodes_and_judges_are_fixed_within_an_iteration(tmp_path, begun_with, change, words):
    before = plan(tmp_path, *begun_with)
    record(before, 2, is_finished=False)
    with pytest.raises(ConfigError, match=r"iteration 2 was begun with .*; put it back until") as refused:
        check_changes(before, plan(tmp_path, *begun_with, change), SECOND)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    between = PendingPhases(3, ("rollout", "update"))
    if begun_with != STREAMING:
        assert "continues with" in check_changes(before, plan(tmp_path, *begun_with, change), between)


@pytest.mark.parametrize(
    "change",
    [
        "rollout.request_timeout_s=9",
        "rollout.episode_timeout_s=9",
        "rollout.completion_threshold=0.5",
        "rollout.max_vllm_sessions=3",
        "env_config.server_size=3",
        "engine.max_num_seqs=3",
        "openai_config.model=other",  # nobody asks a judge
        "policy_config.test_temperature=0.5",  # of the other split
        "trainer.learning_rate=0.5",
        "cluster.lease_s=99",
        "wandb.project=other",
    ],
)
def test_time_limits_sizes_and_trainer_settings_may_change_at_any_time(tmp_path, change):
    before = plan(tmp_path)
    record(before, 2, is_finished=False)
    check_changes(before, plan(tmp_path, change), SECOND)


def test_an_evaluation_keeps_its_temperature_and_its_number_of_tasks(tmp_path):
    before = plan(tmp_path)
    path = before.paths.checkpoint_shard("test", 2)
    path.parent.mkdir(parents=True)
    path.touch()
    evaluating = PendingPhases(2, ("evaluate", "update"))
    for change, words in (
        ("policy_config.test_temperature=0.5", "policy_config.test_temperature=1.0, not 0.5"),
        ("policy_config.temperature=0.5", "policy_config.test_temperature=1.0, not 0.5"),
        ("env_config.test_tasks_rollout_size=3", "env_config.test_tasks_rollout_size=-1, not 3"),
    ):
        with pytest.raises(ConfigError, match="iteration 2 was begun with") as refused:
            check_changes(before, plan(tmp_path, change), evaluating)
        assert words in str(refused.value)
    both = plan(tmp_path, "policy_config.temperature=0.5", "policy_config.test_temperature=1.0")
    assert "continues with" in check_changes(before, both, evaluating)
    assert "continues with" in check_changes(before, plan(tmp_path, "rollout.group_size=8"), evaluating)


def test_between_two_iterations_everything_may_change(tmp_path):
    before = plan(tmp_path, *STREAMING)
    record(before, 1, is_finished=True)
    trained_on(before, 1)
    line = check_changes(before, plan(tmp_path, *STREAMING, "rollout.group_size=8", "seed=7"), SECOND)
    assert line == "--resume: continues with rollout.group_size=8 (was 4), seed=7 (was 0)"


def test_another_task_file_is_no_change_because_the_run_has_its_own_copy(tmp_path):
    assert check_changes(plan(tmp_path), plan(tmp_path, "env_config.train_tasks=other.jsonl"), SECOND) is None


def test_a_rollout_ahead_of_the_trainer_counts_with_its_own_settings(tmp_path):
    before = plan(tmp_path, *STREAMING)
    record(before, 1, is_finished=True)
    with pytest.raises(ConfigError, match="iteration 1 was begun with seed"):
        check_changes(before, plan(tmp_path, *STREAMING, "seed=7"), SECOND)


def test_a_rollout_in_turn_with_training_keeps_its_samples_until_done(tmp_path):
    before = plan(tmp_path)
    changed = plan(tmp_path, "seed=7")
    record(before, 2, is_finished=False)
    with pytest.raises(ConfigError, match="iteration 2 was begun with seed"):
        check_changes(before, changed, SECOND)
    assert "seed=7" in check_changes(before, changed, PendingPhases(3, ("rollout", "update")))


def test_nothing_changed_or_only_a_nodes_own_settings_gives_no_note(tmp_path):
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
