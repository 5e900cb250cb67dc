"""The keys of a simulation make its settings."""

import pytest

from rl_agent.errors import ConfigError
from rl_agent.pool.settings import load_settings
from rl_agent.simulation.config import read_config, shape_of, wanted_of
from rl_agent.simulation.spot import Change
from tests.unit.simulation.scenarios import SMALL, scenario


def test_machines_are_requested_by_a_pools_rules_within_the_supply():
    trace = [Change(0.0, is_join=True), Change(1.0, is_join=True), Change(2.0, is_join=False)]
    rules, own = wanted_of(read_config(SMALL), trace), load_settings((), {}).scale
    assert (rules.waiting_share, rules.lower_after_s) == (own.waiting_share, own.lower_after_s)
    (kind,) = rules.kinds
    assert (kind.price_per_hour, kind.max_engines, kind.start_s) == (2.0, 2, 20.0)


def test_lengths_must_have_a_mean_below_the_longest():
    with pytest.raises(ConfigError, match="must be below longest"):
        scenario([Change(0.0, is_join=True)], "mean_tokens=5000")


def test_a_model_is_a_known_one_or_a_config():
    with pytest.raises(ConfigError, match="nor a config"):
        shape_of("/nowhere")
