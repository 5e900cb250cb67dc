"""The plan as text, in short or with every key, without secrets."""

from rl_agent.plan.show import show


def sections(text: str) -> dict[str, str]:
    parts = text.split("[")[1:]
    return {part.partition("]")[0]: part.partition("]")[2] for part in parts if "]\n" in part}


def test_in_short_it_says_what_runs_where_and_which_settings_were_given(started):
    text = show(started("rollout.group_size=4", "--max-iterations", "3"), {"HOME": "/"})
    found = sections(text)
    assert list(found) == ["run", "paths", "machine", "commands", "settings", "notes"]
    assert "begins with     iteration 1:" in found["run"] and "iterations      3" in found["run"]
    assert "8 of 4 train tasks (with repeats)" in found["run"] and "4 attempts per train task" in found["run"]
    assert "rollout.group_size=4" in found["settings"] and "a note" in found["notes"]
    words = ("vllm", "--split test", "--split train", "prepare-update", "publish")
    places = [found["commands"].index(word) for word in words]
    assert places == sorted(places), "in the order in which an iteration that evaluates runs them"


def test_with_verbose_it_has_every_key_and_hides_keys_of_services(started):
    text = show(started("--dry-run", "--verbose"), {"HOME": "/", "WANDB_API_KEY": "secret"})
    assert "run_name: log" in text and "secret" not in text


def test_a_streaming_run_shows_its_manager_and_its_trainer(started):
    text = show(started("trainer=grpo", "rollout.group_size=4"), {"HOME": "/"})
    commands = sections(text)["commands"]
    assert "cli manager --plan PLAN" in commands and "stream-train --plan PLAN --start 1" in commands
    assert "the pool at 127.0.0.1:" in sections(text)["machine"] and "prepare-update" not in commands
