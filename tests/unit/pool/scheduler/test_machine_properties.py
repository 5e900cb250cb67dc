"""Whatever happens in whatever order: every request ends once, and what it says is the truth."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import Weights
from tests.support.pool_world import RULES, World

FAULTS = ("kill", "kill silently", "stop", "continue", "drain", "crash", "break", "join", "submit", "cancel")
FAULTS += ("deafen", "hear")
VERSIONS = ("publish", "load", "load", "load")


def cause(world: World, fault: str, random_: random.Random) -> None:
    number = len(world.state.requests)
    if fault == "submit":
        length, limit = random_.randint(2, 300), random_.choice([20, 1000])
        penalty = random_.choice([0.0, 0.0, 0.0, 0.3])
        world.submit(
            f"r{number}",
            length,
            max_tokens=limit,
            seed=number,
            group=f"g{number // 4}",
            run=f"run{number % 3}",
            params={"presence_penalty": penalty},
            min_weight_version=max(0, world.state.weight_version - random_.choice([0, 1, 9])),
        )
    elif fault == "join":
        world.join(random_.choice("abcdef"), speed=random_.choice([20.0, 100.0]), capacity=8)
    elif fault == "cancel" and number:
        world.handle(events.Cancelled(random_.choice(list(world.state.requests))))
    elif fault == "publish":
        publish(world)
    else:
        strike_an_engine(world, fault, random_)


def strike_an_engine(world: World, fault: str, random_: random.Random) -> None:
    """Let something happen to one of the engines, if any lives."""
    alive = [engine for engine in world.engines.values() if engine.is_alive]
    if not alive:
        return
    engine = random_.choice(alive)
    if fault == "load":
        engine.load_wanted()
    elif fault in ("kill", "kill silently"):
        engine.die(silently=fault == "kill silently")
    elif fault == "stop":
        engine.is_stopped = True
    elif fault == "continue":
        engine.is_stopped = False
        engine._step_later()
    elif fault in ("deafen", "hear"):
        engine.is_deaf = fault == "deafen"
    elif fault == "drain":
        world.handle(events.DrainAsked(engine.engine_id, world.now + random_.uniform(0, 20), "notice"))
    elif fault == "crash":
        engine.crash()
    elif fault == "break" and engine.attempts:
        request_id, attempt = random_.choice(list(engine.attempts))
        world.handle(events.Broken(request_id, attempt, "garbage"))


def publish(world: World) -> None:
    version = world.state.weight_version + 1
    weights = Weights(version, f"digest {version}", ("tcp://trainer:1",), "token", version)
    world.handle(events.WeightsWanted(weights))


def play(seed: int, faults: list[str], poisoned: bool = False) -> World:
    random_ = random.Random(seed)
    world = World(poison=frozenset({3}) if poisoned else frozenset(), poison_position=random_.randint(0, 40))
    for number, fault in enumerate(faults):
        world.at(number * random_.uniform(0.0, 1.5), lambda fault=fault: cause(world, fault, random_))
    world.run(3.0 * len(faults))
    for name in ("last-1", "last-2", "last-3", "last-4", "last-5"):
        last = world.join(name)
        last.random_ = random_
        last.load_wanted()
    world.run_until_all_ended(world.now + 5000)
    return world


@given(seed=st.integers(0, 2**32), faults=st.lists(st.sampled_from(FAULTS + VERSIONS), max_size=60))
def test_every_request_ends_once_and_completed_ones_say_the_whole_truth(seed, faults):
    world = play(seed, faults)
    world.assert_all_right()
    for request in world.state.requests.values():
        # Kills that happen to hit one request three times before its first token cannot be told from poison.
        is_unlucky = len(request.deaths) >= RULES.engine_deaths_limit
        assert is_unlucky or request.failure in ("", "cancelled by its submitter")


@given(
    seed=st.integers(0, 2**32),
    faults=st.lists(st.sampled_from(["submit", "submit", "join", "kill"]), max_size=60),
)
def test_a_killer_among_them_changes_only_that_the_killer_may_fail(seed, faults):
    world = play(seed, ["join", "join", "join", *["submit"] * 8, *faults], poisoned=True)
    world.assert_all_right()
    for request in world.state.requests.values():
        is_killer = request.order.prompt_token_ids[1] == 3
        assert is_killer or not request.failure or len(request.deaths) >= RULES.engine_deaths_limit


@given(seed=st.integers(0, 2**32), faults=st.lists(st.sampled_from(FAULTS), max_size=40))
def test_the_same_events_give_the_same_decisions(seed, faults):
    first, second = play(seed, faults), play(seed, faults)
    assert first.ended_at == second.ended_at
    assert first.decisions == second.decisions
    assert first.state.account == second.state.account
