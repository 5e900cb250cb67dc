"""A key of WebGym, PolyRL, TRL, verl or prime-rl is answered with the one that stands here."""

import json
import re
from pathlib import Path

import pytest

from rl_agent.config.overrides.elsewhere import (
    NOT_NEEDED,
    NOT_OFFERED,
    POLYRL,
    PRIME_RL,
    TRL,
    VERL,
    VERL_BEGINNINGS,
    WEBGYM,
)
from rl_agent.config.overrides.keys import GROUPS, hint, valid_keys
from rl_agent.errors import ConfigError
from rl_agent.plan.arguments import HELP
from tests.unit.config.overrides.test_compose import compose

LISTED = json.loads(Path(__file__).with_name("keys_of_others.json").read_text())
"""Keys of their releases, made by docs/list_keys_of_others.py."""
TABLES = {"trl": TRL, "verl": VERL, "prime-rl": PRIME_RL}
ALL = [pair for table in (WEBGYM, POLYRL, *TABLES.values()) for pair in table.items()]


@pytest.mark.parametrize(("theirs", "ours"), ALL)
def test_a_key_of_theirs_names_one_that_exists_here(theirs, ours):
    assert theirs not in valid_keys()
    assert ours in {*valid_keys(), *GROUPS} or (ours.startswith("--") and ours in HELP)
    assert hint(theirs) == f"that is {ours} here"


@pytest.mark.parametrize("name", TABLES)
def test_a_key_of_theirs_is_one_of_their_release(name):
    assert LISTED[name]["version"]
    theirs = LISTED[name]["keys"] + (LISTED["transformers"]["keys"] if name == "trl" else [])
    assert [key for key in TABLES[name] if key not in theirs] == []


@pytest.mark.parametrize(
    ("theirs", "trainer", "told"),
    [
        ("learning_rate", "grpo", "that is trainer.optimizer.learning_rate here"),
        ("learning_rate", "llamafactory", "did you mean trainer.learning_rate?"),
        ("warmup_steps", "grpo", "did you mean trainer.optimizer.warmup_steps?"),
        ("gradient_accumulation_steps", "grpo", "that is trainer.batch.token_budget here"),
        ("epsilon", "llamafactory", "that is trainer.loss.clip_low here, with trainer=grpo"),
    ],
)
def test_a_key_of_theirs_is_answered_with_one_of_the_chosen_trainer(theirs, trainer, told):
    with pytest.raises(ConfigError, match=f"there is no key {theirs}; {re.escape(told)}$"):
        compose(f"trainer={trainer}", f"{theirs}=1")


def test_the_keys_of_their_trainer_have_the_same_names_here():
    for name in ("learning_rate", "positive_samples_to_train", "recency_bias_power", "num_train_epochs"):
        assert hint(f"algorithm_config.{name}") in (
            f"did you mean trainer.{name}?",
            f"did you mean trainer.optimizer.{name}?",
        )


@pytest.mark.parametrize(("beginning", "ours"), VERL_BEGINNINGS.items())
def test_the_keys_of_their_transfer_name_one_that_exists_here(beginning, ours):
    assert ours in valid_keys()
    assert hint(f"{beginning}port") == f"that is {ours} here"


@pytest.mark.parametrize(("theirs", "reason"), NOT_NEEDED.items())
def test_a_key_that_nothing_stands_for_says_why_none_is_needed(theirs, reason):
    assert not [key for key in valid_keys() if f".{key}".endswith(f".{theirs}")]
    assert hint(f"env_config.{theirs}") == f"none is needed here: {reason}"


@pytest.mark.parametrize(("theirs", "instead"), NOT_OFFERED.items())
def test_a_key_for_what_is_not_done_here_says_what_is_done_instead(theirs, instead):
    assert not [key for key in valid_keys() if f".{key}".endswith(f".{theirs}")]
    assert hint(f"actor.{theirs}") == f"that is not offered here: {instead}"


def test_a_key_for_what_is_not_done_here_is_one_of_their_releases():
    listed = [f".{key}" for release in LISTED.values() for key in release["keys"]]
    assert [end for end in NOT_OFFERED if not any(key.endswith(f".{end}") for key in listed)] == []
