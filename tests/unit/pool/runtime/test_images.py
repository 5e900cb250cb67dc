"""The images of a pool's requests: kept while they are shown, and within a bound afterwards."""

import asyncio
import hashlib

import pytest

from rl_agent.engine.packed import ImageContent
from rl_agent.pool.runtime.images import ImageStore


def image(content, *, is_sent=True):
    return ImageContent(hashlib.sha256(content).hexdigest(), content if is_sent else None)


def named(*contents):
    return [image(content).digest for content in contents]


async def test_an_image_comes_once_and_is_read_once_for_each_request():
    store = ImageStore()
    assert await store.add([image(b"one"), image(b"two", is_sent=False)]) == named(b"two")
    assert await store.add([image(b"one", is_sent=False), image(b"two")]) == []
    digests = named(b"one", b"two", b"one")
    read = await store.read(digests, frozenset(named(b"one")))
    assert read == [image(b"one"), image(b"two", is_sent=False), image(b"one", is_sent=False)]


async def test_images_of_open_requests_stay_and_others_are_dropped():
    store = ImageStore(max_bytes=8)
    with store.kept(named(b"1111", b"2222", b"3333")):
        assert await store.add([image(content) for content in (b"1111", b"2222", b"3333")]) == []
        with store.kept(named(b"4444")):
            await store.add([image(b"4444")])
        assert await store.add([image(b"4444", is_sent=False)]) == named(b"4444")
        assert len(await store.read(named(b"1111"), frozenset(named(b"1111")))) == 1
    later = [image(content, is_sent=False) for content in (b"1111", b"2222", b"3333")]
    assert await store.add(later) == named(b"1111")
    assert await store.add([image(b"1111")]) == []
    assert await store.read(named(b"1111"), frozenset(named(b"1111"))) == [image(b"1111")]


async def test_an_image_that_comes_twice_at_once_is_counted_once():
    store = ImageStore(max_bytes=8)
    await asyncio.gather(*(store.add([image(b"1111")]) for _ in range(4)))
    with store.kept(named(b"2222")):
        await store.add([image(b"2222")])
    assert await store.add([image(b"1111", is_sent=False), image(b"2222", is_sent=False)]) == []


async def test_an_image_with_another_content_is_not_kept():
    store = ImageStore()
    with pytest.raises(ValueError, match="has another content"):
        await store.add([ImageContent("a" * 64, b"1111")])
    assert await store.add([ImageContent("a" * 64)]) == ["a" * 64]
