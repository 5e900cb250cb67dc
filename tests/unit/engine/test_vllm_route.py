"""The images that a vLLM server keeps for the requests to come."""

import hashlib

from rl_agent.engine.packed import ImageContent
from rl_agent.engine.vllm_route import ImageCache


def image(content, *, is_sent=True):
    return ImageContent(hashlib.sha256(content).hexdigest(), content if is_sent else None)


def test_an_image_that_was_sent_once_is_there_for_the_next_request():
    cache = ImageCache()
    assert cache.take([image(b"one"), image(b"one", is_sent=False), image(b"two")]) == (
        [b"one", b"one", b"two"],
        [],
    )
    later = [image(content, is_sent=False) for content in (b"two", b"three", b"three", b"one")]
    assert cache.take(later) == ([b"two", b"one"], [image(b"three").digest])


def test_images_that_were_not_used_for_longest_are_dropped_first():
    cache = ImageCache(max_bytes=8)
    cache.take([image(b"1111"), image(b"2222")])
    cache.take([image(b"1111", is_sent=False)])
    assert cache.take([image(b"3333"), image(b"1111", is_sent=False)])[1] == []
    assert cache.take([image(b"2222", is_sent=False)])[1] == [image(b"2222").digest]
    large = image(b"9" * 20)
    assert cache.take([large, image(b"1111", is_sent=False)]) == ([b"9" * 20, b"1111"], [])
