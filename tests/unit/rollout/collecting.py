"""A collector among fakes: a writer that keeps, a source of chunks, an account at the end."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from rl_agent.rollout.collector.collect import Collector, CollectSettings
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.stop_rule import StopRule
from rl_agent.types import EpisodeCounts
from tests.unit.rollout.episodes import make_setup, make_spec

PATIENT = StopRule(1.0, 30.0)


class FakeWriter:
    """Keeps what is appended, in order; slow where told."""

    def __init__(self, error=None):
        self.trajectories = []
        self.error = error

    async def append(self, trajectory):
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        self.trajectories.append(trajectory)
        return trajectory

    def statuses(self):
        return Counter(trajectory.status for trajectory in self.trajectories)


@dataclass(frozen=True)
class FakeChunk:
    id: int
    indices: range


class FakeSource:
    """Chunks of `size` episodes for one rank; `later` are published once nothing is left to claim."""

    def __init__(self, count, *, size=3, later=()):
        firsts = range(0, count, size)
        self.free = [FakeChunk(first, range(first, min(first + size, count))) for first in firsts]
        self.later = list(later)
        self.claimed = []
        self.reported = []
        self.closed = asyncio.Event()

    async def next_chunk(self):
        await asyncio.sleep(0)
        if not self.free:
            return None
        self.claimed.append(self.free.pop(0))
        return self.claimed[-1]

    async def more_or_closed(self):
        if self.later:
            self.free.append(self.later.pop(0))
            return True
        if len(self.reported) < len(self.claimed):
            await self.closed.wait()
        return False

    def report(self, chunk_id):
        self.reported.append(chunk_id)
        if len(self.reported) == len(self.claimed) and not self.free and not self.later:
            self.closed.set()


def all_left(indices):
    return [make_spec(index) for index in indices]


def in_turn(*environments, then):
    """Return a maker that gives out these environments, and then those that `then` makes."""
    rest = iter(environments)
    return lambda kind: next(rest, None) or then()


def make_collector(create, writer, *, server_size=4, stop_rule=PATIENT, engine=None, setup=None, **changes):
    setup = setup or make_setup(create, engine)
    settings = CollectSettings(server_size, stop_rule, judge_timeout_s=0.05)
    changes = {"left": all_left, "start_episode": lambda spec: Episode(spec, setup), **changes}
    return Collector(settings, writer=writer, **changes)


async def collect(collector, source):
    """`source` may be a number of episodes, which this rank runs alone."""
    if isinstance(source, int):
        collector._whole = lambda count=source: count
        source = FakeSource(source, size=max(1, source))
    async with asyncio.timeout(10):
        await collector.collect(source)


def summary(collector):
    return str(EpisodeCounts(collector.submitted, collector.ended))
