"""An instance in a worker is stepped as one that lives here."""

import asyncio
import os
from pathlib import Path

import pytest

from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal
from tests.unit.env.remote.pools import begun, pid_in, workers


async def test_an_instance_in_a_worker_does_what_it_does_here():
    async with workers(kwargs={"obeying": {"greeting": "> "}}) as pool:
        instance, shown = await begun(pool)
        assert shown.text.startswith("> hello 7 ")
        assert pid_in(shown) != os.getpid()

        result = await instance.step("look")
        assert (result.observation.text, result.reward) == ("1 look", 0.5)
        assert (result.done, result.truncated, result.changed, result.invalid) == (False, False, False, True)
        assert (await instance.step("done")).done
        with pytest.raises(EnvironmentFailure, match="ValueError: oh"):
            await instance.step("raise oh")
        with pytest.raises(EnvironmentFailure, match="SystemExit: 3"):
            await instance.step("leave")
        with pytest.raises(EnvironmentFailure, match="KeyboardInterrupt"):
            await instance.step("interrupt")
        with pytest.raises(EnvironmentRefusal, match="returned dict, not a StepResult"):
            await instance.step("lie")
        with pytest.raises(EnvironmentRefusal, match="characters; at most"):
            await instance.step(f"long {2**24 + 1}")
        assert (await instance.step("look")).observation.text == "8 look"

        picture = Path((await instance.step("picture x")).observation.images[0])
        assert picture.read_bytes() == b"x" * 100  # noqa: ASYNC240
        await instance.close()
        await instance.close()
    assert not picture.parent.exists()


async def test_a_call_that_nobody_waits_for_is_cancelled_there():
    async with workers() as pool:
        instance, _ = await begun(pool)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await instance.step("wait 600")
        async with asyncio.timeout(5):
            assert (await instance.step("look")).observation.text == "2 look"
