"""Decisions of a manager are kept for the next one."""

import asyncio
import json

import pytest

from rl_agent.pool.runtime.scaling import Scaling, scaling_file
from rl_agent.pool.settings import load_settings
from tests.support.pool_setup import until
from tests.support.pool_world import World

SCALED = "scale.kinds=[{name: spot, price_per_hour: 3.6, min_engines: 1, max_engines: 4, start_s: 5}]"


async def test_what_was_decided_since_the_last_interval_is_kept_at_the_end(tmp_path):
    file = scaling_file(tmp_path / "pool.sqlite")
    config = load_settings([SCALED, "scale.interval_s=1000"], {}).scale
    world = World()
    scaling = Scaling(config, world.state, lambda: world.now, file)
    job = asyncio.get_running_loop().create_task(scaling.run())
    await until(file.exists, 20)
    world.join("other", price=36.0)
    world.run(100.0)
    scaling.decide()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert json.loads(file.read_text())["spent"] == pytest.approx(scaling.answer().spent)
    assert scaling.answer().spent > 0
