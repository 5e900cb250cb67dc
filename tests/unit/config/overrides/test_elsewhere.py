"""Who types a key of WebGym or of verl is told the one that stands here."""

import pytest

from rl_agent.config.overrides.elsewhere import NOT_NEEDED, VERL, VERL_BEGINNINGS, WEBGYM
from rl_agent.config.overrides.keys import hint, valid_keys


@pytest.mark.parametrize(("theirs", "ours"), [*WEBGYM.items(), *VERL.items()])
def test_a_key_of_theirs_names_one_that_exists_here(theirs, ours):
    assert theirs not in valid_keys()
    assert ours in valid_keys()
    assert hint(theirs) == f"that is {ours} here"


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
    assert not [key for key in valid_keys() if key.rpartition(".")[2] == theirs]
    assert hint(f"env_config.{theirs}") == f"none is needed here: {reason}"
