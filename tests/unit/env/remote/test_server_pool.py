"""Episodes over several environment servers, of which any may go."""

import asyncio

import pytest

from rl_agent.errors import EnvironmentLost, RetryLater
from tests.unit.env.remote.pools import begun, is_gone, pid_in, until
from tests.unit.env.remote.servers import connected, server


async def test_episodes_go_to_servers_by_free_places_and_wait_if_all_are_taken():
    async with (
        server(places=1) as (small, _, _),
        server(places=3) as (large, _, _),
        connected(small, large) as pool,
    ):
        await until(lambda: all(link.connection for link in pool.links))
        instances = [await begun(pool) for _ in range(4)]
        used = sorted(len(link.connection.instances) for link in pool.links)
        assert used == [1, 3]
        waiting = asyncio.ensure_future(begun(pool))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await instances[0][0].close()
        await waiting


@pytest.mark.extended
async def test_places_that_another_rollout_has_taken_are_waited_for():
    async with server(places=1) as (url, _, _), connected(url) as first, connected(url) as second:
        instance, _ = await begun(first)
        waiting = asyncio.ensure_future(begun(second))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await instance.close()
        await waiting


@pytest.mark.extended
async def test_a_lost_server_costs_an_attempt_and_is_used_again_once_back():
    async with connected("http://127.0.0.1:1", wait_s=30) as pool:
        async with server() as (url, _, serving):
            pool.links[0].url = url
            instance, shown = await begun(pool)
            serving.cancel()
            with pytest.raises(EnvironmentLost):
                await instance.step("wait 60")
            await instance.close()
        await until(lambda: is_gone(pid_in(shown)))
        async with server(port=int(url.rpartition(":")[2])):
            _, again = await begun(pool)
            assert again.text.startswith("hello")


async def test_no_server_at_all_ends_the_rollout_for_a_resume():
    async with connected("http://127.0.0.1:1", wait_s=0.5) as pool:
        with pytest.raises(RetryLater, match=r"none has answered for .* s: http://127\.0\.0\.1:1: "):
            await begun(pool)
