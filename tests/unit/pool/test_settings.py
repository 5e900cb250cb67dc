"""The manager's settings, from words in its own names of keys."""

import pytest

from rl_agent.errors import HarnessError
from rl_agent.pool.settings import load_settings


def test_a_word_sets_its_key_and_an_unknown_one_names_the_nearest():
    assert load_settings(["max_broken_attempts=5"], {}).max_broken_attempts == 5
    with pytest.raises(HarnessError, match=r"did you mean max_broken_attempts\?"):
        load_settings(["max_broken_attemps=5"], {})
