"""The manager's settings: old names of keys are understood for one release."""

import pytest

from rl_agent.pool.settings import load_settings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("poison_engines", "engine_deaths_limit"),
        ("max_fruitless", "max_broken_attempts"),
    ],
)
def test_an_old_name_of_a_key_sets_the_new_one(old, new):
    assert getattr(load_settings([f"{old}=5"], {}), new) == 5
