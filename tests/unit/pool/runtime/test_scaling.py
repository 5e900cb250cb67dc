"""Decisions of a manager are what the next one goes on with."""

import pytest

from rl_agent.pool.runtime.scaling import Scaling
from rl_agent.pool.settings import load_settings
from tests.support.pool_world import World

SCALED = "scale.kinds=[{name: spot, price_per_hour: 3.6, min_engines: 1, max_engines: 4, start_s: 5}]"


def test_the_next_manager_knows_what_was_wanted_and_spent():
    config = load_settings([SCALED], {}).scale
    world = World()
    scaling = Scaling(config, world.state, lambda: world.now)
    scaling.decide()
    world.join("other", price=36.0)
    world.run(100.0)
    scaling.decide()
    assert scaling.kept().counts == {"spot": 1} and scaling.kept().spent > 0
    later = World()
    again = Scaling(config, later.state, lambda: later.now)
    again.restore(scaling.kept())
    assert again.answer().counts == {"spot": 1}
    again.decide()
    assert again.answer().spent == pytest.approx(scaling.kept().spent)
