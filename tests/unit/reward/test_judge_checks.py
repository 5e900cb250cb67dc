"""What a model judge needs is there before a run starts."""

import pytest

from rl_agent.config import Command
from rl_agent.errors import ConfigError
from rl_agent.reward.judge_checks import check_judge
from tests.unit.overrides.test_compose import compose
from tests.unit.plan.test_checks import BOTH

COMMAND = Command.model_validate(BOTH)


def test_a_judge_that_is_described_and_not_asked_is_named_in_one_line():
    words = ("openai_config.model=gpt-4o", "openai_config.max_images=2")
    named = "openai_config.max_images, openai_config.model"

    told = f"{named} change nothing: no judge is asked; set rollout.reward=judge"
    assert [note for note in compose(*words).notes if "openai_config" in note] == [told]
    assert [note for note in compose(*words, "rollout.reward=judge").notes if "openai_config" in note] == []


PRICES = (
    "openai_config.price_per_million_prompt_tokens=1",
    "openai_config.price_per_million_completion_tokens=1",
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("openai_config.budget_usd=5",), "has no price to count by"),
        (("openai_config.verdict_prompt=none.md",), r"the prompt .*none\.md cannot be read"),
        (("openai_config.pick_prompt=default.yaml",), r"the prompt .*default\.yaml lacks \{fence\}"),
        (
            ("+openai_config.pick.openai_api_key_env_var=OTHER",),
            "the variable OTHER with the judge's API key",
        ),
    ],
)
def test_a_judge_that_could_not_work_is_refused(words, message):
    config = compose("rollout.reward=judge", *words).config
    with pytest.raises(ConfigError, match=message):
        check_judge(config, COMMAND, {"OPENAI_API_KEY": "x"})


def test_a_budget_that_is_spent_already_is_refused_before_a_run(tmp_path):
    config = compose("rollout.reward=judge", "openai_config.budget_usd=5", *PRICES).config
    config = config.model_copy(update={"log_path": tmp_path})
    check_judge(config, COMMAND, {"OPENAI_API_KEY": "x"})
    spent = config.paths.judge_cache / "spent"
    spent.mkdir(parents=True)
    (spent / "a.txt").write_text("5.0\n")

    with pytest.raises(ConfigError, match=r"budget_usd=5 is spent"):
        check_judge(config, COMMAND, {"OPENAI_API_KEY": "x"})
