"""Chunks before and after the order of a rollout."""

import asyncio

import pytest

from rl_agent.cluster.member.chunk_queue import ClaimedChunk
from rl_agent.rollout.head_start import HeadStartQueue


class Phase:
    """The chunks of the ordered phase: one, until the phase is closed."""

    def __init__(self):
        self.shard = None
        self.left = [ClaimedChunk(0, (4, 5))]
        self.reported = []

    def set_shard(self, name):
        self.shard = name

    async def next_chunk(self):
        return self.left.pop() if self.left else None

    async def more_or_closed(self):
        return False

    def report(self, chunk_id):
        self.reported.append(chunk_id)


async def test_groups_are_given_out_in_order_before_the_phase_is_ordered():
    queue = HeadStartQueue()
    queue.begin([[0, 1], [2, 3]])
    chunks = [await queue.next_chunk() for _ in range(3)]
    assert [chunk and chunk.indices for chunk in chunks] == [(0, 1), (2, 3), None]
    assert queue.begun == {0, 1, 2, 3}


async def test_after_the_order_the_rest_comes_from_the_phase():
    queue, phase = HeadStartQueue(), Phase()
    queue.begin([[0, 1], [2, 3]])
    own = await queue.next_chunk()
    queue.set_shard("iteration2")
    queue.order(phase)
    assert phase.shard == "iteration2"

    claiming = asyncio.ensure_future(queue.next_chunk())
    await asyncio.sleep(0)
    assert not claiming.done(), "what is missing is not published yet"
    queue.open()
    assert await claiming == ClaimedChunk(0, (4, 5))
    assert queue.begun == {0, 1}

    finishing = asyncio.ensure_future(queue.finished())
    await asyncio.sleep(0)
    assert not finishing.done()
    queue.report(own.id)
    queue.report(0)
    await finishing
    assert phase.reported == [0]


@pytest.mark.parametrize("groups", [[[0]], [[0], [1]]], ids=["all before the order", "not all"])
async def test_all_is_given_out_once_the_sample_or_the_phase_has_nothing_left(groups):
    queue = HeadStartQueue()
    queue.begin(groups)
    await queue.next_chunk()
    if len(groups) > 1:
        queue.order(Phase())
    else:
        assert await queue.next_chunk() is None
    waiting = asyncio.ensure_future(queue.more_or_closed())
    await asyncio.sleep(0)
    assert queue.all_given.is_set() == (len(groups) == 1), "an open phase may have more to give"
    if len(groups) == 1:
        queue.order(Phase())
    queue.open()
    assert not await waiting
    assert queue.all_given.is_set()


@pytest.mark.parametrize("name", ["early", None])
async def test_a_phase_that_was_begun_keeps_its_file(name):
    phase = Phase()
    phase.shard = "iteration2"
    queue = HeadStartQueue()
    queue.order(phase)
    if name:
        queue.set_shard(name)
    assert queue.shard == (name or "iteration2")
