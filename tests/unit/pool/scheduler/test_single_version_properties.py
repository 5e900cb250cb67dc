"""Responses of one weight version, whatever happens to the engines."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineState
from tests.support.pool_world import World
from tests.unit.pool.scheduler.test_machine_properties import strike_an_engine
from tests.unit.pool.scheduler.test_single_version import follow, publish, versions

FAULTS = ("submit", "submit", "turn", "end", "join", "kill", "crash", "drain", "break", "publish", "publish")


def cause(world, fault, random_):
    number, name = len(world.state.requests), f"e{random_.randrange(4)}"
    if fault in ("submit", "turn"):
        episode = name if fault == "turn" else ""
        newest = random_.choice([0, 0, world.state.weight_version])
        length = random_.randint(2, 300)
        world.submit(f"r{number}", length, seed=number, episode=episode, min_weight_version=newest)
    elif fault == "end":
        world.handle(events.EpisodeEnded("run", name))
    elif fault == "join":
        follow(world, world.join(random_.choice("abcdef"), capacity=4))
    elif fault == "publish":
        publish(world, world.state.weight_version + 1)
    else:
        strike_an_engine(world, fault, random_)


@given(seed=st.integers(0, 2**32), faults=st.lists(st.sampled_from(FAULTS), max_size=60))
def test_every_response_ends_and_only_late_engines_mix_versions(seed, faults):
    random_, world = random.Random(seed), World()
    late = set()

    def note_late():
        for engine in world.state.living(EngineState.READY):
            if engine.is_switching and engine.running:
                late.update(engine.running)
        world.at(world.now + 0.05, note_late)

    publish(world, 0)
    for number, fault in enumerate(faults):
        world.at(number * random_.uniform(0.0, 1.5), lambda fault=fault: cause(world, fault, random_))
    note_late()
    world.run(3.0 * len(faults))
    for name in ("last-1", "last-2", "last-3"):
        follow(world, world.join(name))
    world.run_to_a_right_end(world.now + 5000)
    for name, sampled_by in versions(world).items():
        assert len(sampled_by) <= 1 or name in late
