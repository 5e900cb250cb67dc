"""Finished episodes reach a program with an event loop, and one without."""

import asyncio
from contextlib import aclosing

import pytest

from rl_agent.library.finished import FinishedStream


def counting(count, *, ended=None):
    async def produce(give):
        try:
            for number in range(count):
                await give(number)
            if count == 3:
                raise ValueError("the third was the last")
        finally:
            if ended is not None:
                ended.set()

    return FinishedStream(produce)


async def test_all_come_in_order_by_async_for_for_and_await():
    finished = counting(200)
    assert [number async for number in finished] == list(finished) == await finished == list(range(200))


async def test_nothing_that_comes_is_taken_for_the_end():
    async def produce(give):
        await give(None)

    assert await FinishedStream(produce) == list(FinishedStream(produce)) == [None]


async def test_an_error_comes_after_what_was_finished_before_it():
    taken = []
    with pytest.raises(ValueError, match="the third was the last"):
        async for number in counting(3):
            taken.append(number)
    assert taken == [0, 1, 2]
    with pytest.raises(ValueError, match="the third was the last"):
        list(counting(3))


async def test_leaving_a_loop_ends_the_producer():
    ended = asyncio.Event()
    async with aclosing(aiter(counting(10**9, ended=ended))) as each:
        assert await anext(each) == 0
    assert ended.is_set()


async def test_a_producer_waits_for_a_slow_consumer():
    given = []

    async def produce(give):
        for number in range(1000):
            await give(number)
            given.append(number)

    async with aclosing(aiter(FinishedStream(produce))) as each:
        await anext(each)
        for _ in range(3000):
            await asyncio.sleep(0)
        assert len(given) < 100
