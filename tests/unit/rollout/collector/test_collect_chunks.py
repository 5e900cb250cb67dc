"""The collector as one of several ranks: it claims chunks, reports them, and gives up what is left."""

import asyncio

import pytest

from rl_agent.rollout.collector.stop_rule import StopRule
from rl_agent.types import Status
from tests.unit.rollout.collecting import FakeChunk, FakeSource, FakeWriter, collect, in_turn, make_collector
from tests.unit.rollout.episodes import FakeEnvironment, make_spec


async def test_a_chunk_is_claimed_only_for_a_free_place_without_waiting_work():
    class Counted(FakeEnvironment):
        async def reset(self, task, seed):
            claimed = sum(len(chunk.indices) for chunk in source.claimed)
            ahead.append(claimed - len(writer.trajectories))
            return await super().reset(task, seed)

    ahead, writer, source = [], FakeWriter(), FakeSource(40, size=3)
    await collect(make_collector(lambda kind: Counted(), writer, server_size=4), source)

    assert max(ahead) <= 2 * 4 + 2  # the places, as many that end, and what is left of the last chunk
    assert len(writer.trajectories) == 40


async def test_a_chunk_is_reported_once_and_only_when_all_of_it_is_recorded():
    class Checking(FakeSource):
        def report(self, chunk_id):
            wanted = {make_spec(index).key for index in range(chunk_id, chunk_id + 3)}
            assert wanted <= {trajectory.key for trajectory in writer.trajectories}
            super().report(chunk_id)

    writer, source = FakeWriter(), Checking(12)
    await collect(make_collector(lambda kind: FakeEnvironment(), writer), source)
    assert sorted(source.reported) == [0, 3, 6, 9]


async def test_recorded_episodes_are_not_run_and_their_chunk_is_reported():
    def left(indices):
        return [make_spec(index) for index in indices if index not in (0, 1, 2, 4)]

    writer, source = FakeWriter(), FakeSource(6)
    await collect(make_collector(lambda kind: FakeEnvironment(), writer, left=left), source)
    assert sorted(trajectory.seed for trajectory in writer.trajectories) == [103, 105]
    assert sorted(source.reported) == [0, 3]


async def test_a_rank_returns_only_its_own_claims_once_nothing_is_left_to_claim():
    writer = FakeWriter()
    create = in_turn(FakeEnvironment(hangs=["reset"]), then=FakeEnvironment)
    collector = make_collector(create, writer, server_size=2, stop_rule=StopRule(0.5, 0.0))
    await collect(collector, FakeSource(20, size=1))

    assert writer.statuses() == {Status.COMPLETED: 19, Status.ABANDONED: 1}
    assert writer.trajectories[-1].status is Status.ABANDONED


async def test_the_only_rank_gives_up_also_what_it_has_not_claimed():
    writer = FakeWriter()
    done = [FakeEnvironment() for _ in range(10)]
    create = in_turn(*done, then=lambda: FakeEnvironment(hangs=["reset"]))
    collector = make_collector(create, writer, stop_rule=StopRule(0.5, 0.0), whole=lambda: 20)
    await collect(collector, FakeSource(20, size=1))
    assert writer.statuses() == {Status.COMPLETED: 10, Status.ABANDONED: 10}


async def test_a_rank_whose_companions_are_gone_gives_up_too():
    create = in_turn(FakeEnvironment(hangs=["reset"]), then=FakeEnvironment)
    by_others = {"whole": lambda: 1000}  # most of them recorded by others
    collector = make_collector(create, FakeWriter(), stop_rule=StopRule(0.9, 0.0), **by_others)
    await collect(collector, FakeSource(20))
    assert collector.ended == {Status.COMPLETED: 19, Status.ABANDONED: 1}


async def test_work_that_comes_in_the_grace_period_ends_it():
    class Republishing(FakeSource):
        async def more_or_closed(self):
            if self.later:
                await begun.wait()
                asyncio.get_running_loop().call_later(0.1, released.set)
            return await super().more_or_closed()

    begun, released, writer = asyncio.Event(), asyncio.Event(), FakeWriter()
    collector = make_collector(
        in_turn(FakeEnvironment(), then=lambda: Held(released)),
        writer,
        stop_rule=StopRule(0.5, 0.05),
        on_recorded=lambda trajectory: begun.set(),
    )
    await collect(collector, Republishing(2, later=[FakeChunk(2, range(2, 10))]))
    assert writer.statuses() == {Status.COMPLETED: 10}


class Held(FakeEnvironment):
    """Waits in its first step until it is let go."""

    def __init__(self, event):
        super().__init__()
        self._event = event

    async def step(self, action):
        await self._event.wait()
        return await super().step(action)


@pytest.mark.parametrize("server_size", [1, 4])
async def test_the_only_rank_gives_nothing_up_once_more_is_asked_for(server_size):
    """The one that is left may have the only place, so that nothing more can be claimed."""

    def ask_for_more(trajectory):
        if len(writer.trajectories) == 9:  # the grace period begins, and is over before the rest may end
            asyncio.get_running_loop().call_soon(sizes.append, 20)
            asyncio.get_running_loop().call_later(0.2, released.set)

    sizes, released, writer = [10], asyncio.Event(), FakeWriter()
    collector = make_collector(
        in_turn(*(FakeEnvironment() for _ in range(9)), then=lambda: Held(released)),
        writer,
        server_size=server_size,
        stop_rule=StopRule(0.9, 0.05),
        whole=lambda: sizes[-1],
        on_recorded=ask_for_more,
    )
    await collect(collector, FakeSource(10, size=1, later=[FakeChunk(10, range(10, 20))]))
    assert writer.statuses() == {Status.COMPLETED: 20}


async def test_the_grace_period_is_not_extended_by_those_that_end_in_it():
    """Ten have half a second; one that ends every tenth of a second does not put that off."""

    class Source(FakeSource):
        async def more_or_closed(self):
            for number, event in enumerate(ended[10:19]):
                asyncio.get_running_loop().call_later(0.1 * (number + 1), event.set)
            return await super().more_or_closed()

    ended, writer = [asyncio.Event() for _ in range(20)], FakeWriter()
    for event in ended[:10]:
        event.set()
    create = in_turn(*map(Held, ended), then=None)
    rule = {"stop_rule": StopRule(0.5, 0.5), "whole": lambda: 20}
    await collect(make_collector(create, writer, server_size=20, **rule), Source(20))
    assert writer.statuses()[Status.ABANDONED] > 1
