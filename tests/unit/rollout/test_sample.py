"""The episodes that an iteration asks for, and which of them are recorded."""

import pytest

from rl_agent.errors import StoreError
from rl_agent.rollout.sample import Ledger
from rl_agent.types import EpisodeKey
from tests.unit.rollout.master_rollouts import SIZE, make_sample


def test_an_episode_is_recorded_once_and_missing_ones_are_known_in_order():
    sample = make_sample()
    ledger = Ledger(sample)
    assert ledger.missing() == list(range(SIZE))
    assert ledger.record(sample.specs[3].key) and not ledger.record(sample.specs[3].key)
    assert ledger.contains(sample.specs[3].key)
    assert ledger.missing() == [index for index in range(SIZE) if index != 3]


def test_a_key_that_is_not_of_the_sample_is_refused_by_name():
    with pytest.raises(StoreError, match="episode x:0:1 is not of this iteration's sample"):
        Ledger(make_sample()).contains(EpisodeKey("x", 0, 1))
