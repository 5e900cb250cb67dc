"""Every setting either decides how the episodes of an iteration are made, or may change in its middle."""

import pytest

from rl_agent.cluster.protocol.shared_config import is_per_node
from rl_agent.config.overrides.keys import valid_keys
from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout import conditions
from rl_agent.rollout.conditions import DECIDING, DECIDING_IN, first_change

BASE = "model_config.base_model"
MAY_CHANGE = (
    "run_name",
    "model_config.model_type",  # chooses other keys' defaults
    "model_config.template",  # LLaMA-Factory's
    "model_config.reasoning_parser",  # splits a text that is not read
    "model_config.trust_remote_code",
    "env_config.train_tasks",  # the run has its own copy
    "env_config.test_tasks",
    "env_config.attempts",  # a way to a recorded episode, not what is in it
    "rollout.completion_threshold",
    "rollout.completion_grace_period",
    "rollout.request_timeout_s",
    "rollout.step_timeout_s",
    "rollout.episode_timeout_s",
    "rollout.judge_timeout_s",
    "rollout.request_retries",
    "rollout.fsync",
    "openai_config.base_url",  # the same model elsewhere
    "openai_config.openai_api_key_env_var",
    *(
        f"openai_config.{purpose}.{name}"
        for purpose in ("pick", "criterion", "evaluation")
        for name in (
            "base_url",
            "openai_api_key_env_var",
            "max_tokens_name",
            "price_per_million_prompt_tokens",
            "price_per_million_completion_tokens",
        )
    ),
    "openai_config.max_tokens_name",  # the same limit by another name
    "openai_config.budget_usd",
    "openai_config.timeout_s",
    "openai_config.max_retries",
    "openai_config.max_concurrency",
    "openai_config.price_per_million_prompt_tokens",
    "openai_config.price_per_million_completion_tokens",
    "trainer",  # what is trained on and how: plan.changes fixes how samples are dealt to steps
    "cluster",
    "pool",
    "page",
)
"""A key that a person adds goes here, or into one of the lists of `rollout.conditions`."""

DECIDING_BY_VALUE = (
    BASE,
    "policy_config.temperature",
    "policy_config.test_temperature",
    *(f"openai_config.{name}" for name in (*conditions._JUDGE, *conditions._OF_PURPOSE)),
    *(
        f"openai_config.{purpose}.{name}"
        for purpose in ("pick", "criterion", "evaluation")
        for name in conditions._OF_PURPOSE
    ),
)
"""Keys that decide where they are what is used: a base model that is served, a judge that is asked, …"""


def leaves() -> list[str]:
    keys = valid_keys()
    return [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]


def lists_of(key: str) -> list[str]:
    prefixes_by_list = {
        "decides": (*DECIDING, *DECIDING_IN["train"], *DECIDING_IN["test"], *DECIDING_BY_VALUE),
        "may change": MAY_CHANGE,
    }
    return [
        name
        for name, prefixes in prefixes_by_list.items()
        if any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)
    ]


@pytest.mark.parametrize("key", [key for key in leaves() if not is_per_node(key)])
def test_every_shared_setting_decides_or_may_change(key):
    lists = lists_of(key)
    assert len(lists) == 1 or (key, lists) == ("trainer.kind", ["decides", "may change"])


@pytest.mark.parametrize(
    ("begun", "now", "change"),
    [
        ({"a": 1}, {"a": 1}, ""),
        ({"a": 1}, {"a": 2}, "a=1, not 2"),
        ({"a": 1}, {}, "a=1, not unset"),
        ({"a": 1, "b": 1}, {"b": 2}, "b=1, not 2"),  # what both have says more
        ({BASE: "m"}, {}, ""),  # a trainer has published meanwhile
        ({BASE: "m"}, {BASE: "n"}, f"{BASE}=m, not n"),
    ],
)
def test_the_first_setting_that_differs_is_named(begun, now, change):
    assert first_change(begun, now) == change


def test_written_conditions_are_read_back_and_damage_is_named(tmp_path):
    paths = RunPaths(tmp_path)
    begun = {"a": [1, {"b": None}], "c": 1.0, "ü": "d"}
    assert conditions.read(paths, "run", "train", 3) is None
    conditions.write(paths, "run", "train", 3, begun)
    assert conditions.read(paths, "run", "train", 3) == begun
    assert conditions.read(paths, "run", "test", 3) is None
    paths.begun("run", "train", 3).write_text("{")
    with pytest.raises(StoreError, match=r"train-iteration3\.json: what .* was begun with cannot be read"):
        conditions.read(paths, "run", "train", 3)
