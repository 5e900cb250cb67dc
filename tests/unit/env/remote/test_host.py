"""An error of an environment in its host reaches the caller, by its kind."""

import pytest

from rl_agent.errors import EnvironmentRefusal, EnvironmentUnavailable
from rl_agent.types import Task
from tests.unit.env.remote.pools import begun, workers


async def test_faults_that_no_attempt_can_change_are_told_apart():
    async with workers() as pool:
        with pytest.raises(EnvironmentRefusal, match="no page"):
            await begun(pool, task=Task("t", "", "obeying", "easy", extra={"refuses": True}))
        with pytest.raises(EnvironmentUnavailable, match="no browser"):
            await begun(pool, task=Task("t", "", "obeying", "easy", extra={"unavailable": True}))
        with pytest.raises(EnvironmentRefusal, match="no environment 'other'"):
            await begun(pool, kind="other")
    async with workers(kwargs={"obeying": {"colour": "red"}}) as pool:
        with pytest.raises(EnvironmentRefusal, match=r"does not take these env_config.kwargs: .*'colour'"):
            await begun(pool)


async def test_settings_that_a_kind_must_have_reach_it_in_a_worker():
    async with workers(kwargs={"demanding": {"colour": "red"}}) as pool:
        assert (await begun(pool, kind="demanding"))[1].text.startswith("red hello 7 ")
    async with workers() as pool:
        with pytest.raises(EnvironmentRefusal, match="missing a required argument: 'colour'"):
            await begun(pool, kind="demanding")
