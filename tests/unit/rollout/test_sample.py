"""The episodes that an iteration asks for, and which of them are recorded."""

import pytest

from rl_agent.errors import StoreError
from rl_agent.rollout.sample import Ledger
from rl_agent.types import EpisodeKey
from tests.unit.rollout.master_rollouts import SIZE, make_sample
from tests.unit.rollout.trajectories_made import make_trajectory, sample_of


def test_an_episode_is_recorded_once_and_missing_ones_are_known_in_order():
    sample = make_sample()
    ledger, keys = Ledger(sample), [spec.key for spec in sample.specs]
    assert ledger.missing() == list(range(SIZE))
    assert ledger.record(keys[3]) and not ledger.record(keys[3])
    assert ledger.contains(keys[3])
    assert ledger.missing() == [index for index in range(SIZE) if index != 3]
    assert [spec.key for spec in ledger.left([2, 3, 4])] == [keys[2], keys[4]]
    assert len(ledger._is_recorded) == SIZE, "one byte an episode"


def test_a_key_that_is_not_of_the_sample_is_refused_by_name():
    with pytest.raises(StoreError, match="episode x:0:1 is not of this iteration's sample"):
        Ledger(make_sample()).contains(EpisodeKey("x", 0, 1))


def test_attempts_of_one_task_stay_together():
    attempts = (make_trajectory(task, attempt=attempt) for task in range(3) for attempt in range(3))
    assert sample_of(attempts).groups([0, 2, 4, 6, 7, 8]) == [[0, 2], [4], [6, 7, 8]]
