"""The plan as text, in short or with every key, without secrets."""

import pytest

from rl_agent.plan.show import show


def sections(text: str) -> dict[str, str]:
    parts = text.split("[")[1:]
    return {part.partition("]")[0]: part.partition("]")[2] for part in parts if "]\n" in part}


def test_in_short_it_says_what_runs_where_and_which_settings_were_given(started):
    text = show(started("rollout.group_size=4", "--max-iterations", "3"), {"HOME": "/"})
    shown = sections(text)
    assert list(shown) == ["run", "paths", "machine", "commands", "settings", "notes"]
    assert "begins with     iteration 1:" in shown["run"] and "iterations      3" in shown["run"]
    assert "8 of 4 train tasks (with repeats)" in shown["run"] and "4 attempts per train task" in shown["run"]
    assert "rollout.group_size=4" in shown["settings"] and "a note" in shown["notes"]
    words = ("vllm", "--split train", "--split test", "prepare-update", "publish")
    places = [shown["commands"].index(word) for word in words]
    assert places == sorted(places), "in the order in which an iteration that evaluates runs them"


def test_with_verbose_it_has_every_key_and_hides_keys_of_services(started):
    text = show(started("--dry-run", "--verbose"), {"HOME": "/", "WANDB_API_KEY": "secret"})
    assert "run_name: log" in text and "secret" not in text


def test_a_streaming_run_shows_its_manager_and_its_trainer(started):
    text = show(started("trainer=grpo", "rollout.group_size=4"), {"HOME": "/"})
    commands = sections(text)["commands"]
    assert "cli manager --plan PLAN" in commands and "stream-train --plan PLAN --start 1" in commands
    assert "the pool at 127.0.0.1:" in sections(text)["machine"] and "prepare-update" not in commands
    assert commands.index("--split test") < commands.index("--split train"), "it evaluates first"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("trainer.positive_samples_to_train=1500", "trainer.num_train_epochs=4",
             "trainer.learning_rate=1e-4", "trainer.per_device_train_batch_size=32",
             "trainer.gradient_accumulation_steps=2"),
            "learning rate 0.0001; batch 64 steps of episodes, at most 96 optimizer steps per update",
        ),
        (
            ("trainer=grpo", "rollout.group_size=4", "trainer.mini_batches=2"),
            "learning rate 1e-06; batch 16 episodes, 2 optimizer steps per update",
        ),
        (
            ("trainer=grpo", "rollout.group_size=4", "trainer.mini_batches=1"),
            "learning rate 1e-06; batch 32 episodes, 1 optimizer step per update",
        ),
    ],
)  # fmt: skip
def test_it_says_how_an_update_learns(started, words, line):
    text = sections(
        show(started(*words, "engine.max_model_len=4096", "policy_config.test_temperature=0"), {"HOME": "/"})
    )["run"]
    assert f"training        {line}" in text
    if "trainer=grpo" not in words:
        assert (
            "at most trainer.cutoff_len=4096 tokens; model_config.template=chosen after the download" in text
        )
    assert "sampling        temperature 1, test 0; at most 3072 new tokens" in text
