"""Images go to an engine once, whoever shows them."""

import asyncio

from rl_agent.pool.engines import sent_images
from rl_agent.pool.engines.sent_images import SentImages


async def test_a_sibling_waits_for_an_image_on_its_way():
    images, order = SentImages(), []

    async def first():
        with images.coming(await images.unsent({"a"})) as arrival:
            await asyncio.sleep(0)
            order.append("first")
            images.have_come({"a"})
            arrival.set()
            await asyncio.sleep(0.01)

    async def sibling():
        order.append(await images.unsent({"a", "b"}))

    await asyncio.gather(first(), sibling())
    assert order == ["first", {"b"}]
    images.are_lost({"a"})
    assert await images.unsent({"a"}) == {"a"}


async def test_an_image_that_does_not_come_is_sent_by_another_request(monkeypatch):
    images = SentImages()
    with images.coming({"a"}):
        monkeypatch.setattr(sent_images, "COMING_S", 0.01)
        assert await images.unsent({"a"}) == {"a"}
    monkeypatch.setattr(sent_images, "COMING_S", 60.0)
    assert await images.unsent({"a"}) == {"a"}, "its request has failed"
