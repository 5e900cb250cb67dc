"""A request goes to an engine by a class of the user's, and its tokens travel together."""

from dataclasses import replace

import pytest

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.placement import FEW_TOKENS, USUAL_TOKENS
from rl_agent.pool.scheduler.policies import (
    BUILT_IN,
    EngineView,
    PolicyFault,
    RequestView,
    looks_at_requests,
    number_from,
)
from rl_agent.pool.scheduler.records import Weights
from tests.support.pool_world import RULES, World, ready_world


def test_request_lost_before_its_first_long_chunk_is_no_suspect():
    rules = replace(RULES, stream_interval=64)
    world = World(rules=rules, chunk=64)
    world.join("a")
    world.run(1.0)
    for number in range(10):
        world.submit(f"r{number}", 70, seed=number)
    world.join("b")
    next(iter(world.engines.values())).crash()
    assert not world.state.suspects
    assert all(request.interval < 64 for request in world.state.requests.values() if request.is_excused)
    world.run_to_a_right_end(300)


def test_chunks_hold_some_seconds_of_tokens_and_fewer_for_a_reader():
    world, _ = ready_world("a", rules=replace(RULES, stream_interval=128, stream_interval_s=2.0), speed=20.0)
    world.submit("first", 400)
    world.run(10.0)
    world.submit("second", 400)
    world.submit("read", 400, is_read_along=True)
    world.run(10.1)
    intervals = [world.request(name).interval for name in ("first", "second", "read")]
    assert intervals[0] == USUAL_TOKENS  # its speed was not known
    assert 15 <= intervals[1] <= 45 and intervals[2] == FEW_TOKENS


class ByName:
    """Prefers the engine whose name comes first."""

    def score(self, engine):
        return ord(engine.name)


class ByPrompt:
    """Sends even seeds to a, odd ones to b."""

    def score(self, engine, request):
        return (request.prompt_token_ids[1] + ord(engine.name) - ord("a")) % 2


class Constant:
    def score(self, engine):
        return 0.0


class Never:
    def score(self, engine, request):
        raise RuntimeError("no idea")


class ChangesWhatItGets:
    def score(self, engine, request):
        engine.running = 0
        return 0.0


class FailsForOne:
    def score(self, engine):
        return float("nan") if engine.name == "a" else engine.running


def played(policy, names="abc", requests=30, **behaviour):
    """The requests that each engine got first, and the world at the end."""
    rules = replace(RULES, policy=policy, rebalance_gain_s=0.0)
    world, engines = ready_world(*names, rules=rules, **behaviour)
    for number in range(requests):
        world.submit(f"r{number}", 50, seed=number, group=f"g{number // 8}")
    first = {engine.name: len(engine.attempts) for engine in engines}
    world.run_to_a_right_end(1000)
    return first, world.state.placement


def test_a_users_class_decides_which_engine_is_filled_first():
    assert played(ByName, capacity=20)[0] == {"a": 20, "b": 10, "c": 0}


def test_a_users_class_that_looks_at_requests_decides_for_each():
    world, engines = ready_world("a", "b", rules=replace(RULES, policy=ByPrompt))
    for number in range(10):
        world.submit(f"r{number}", 50, seed=number)
    for parity, engine in enumerate(engines):
        prompts = [attempt.request.order.prompt_token_ids for attempt in engine.attempts.values()]
        assert {prompt[1] % 2 for prompt in prompts} == {parity}


@pytest.mark.parametrize("policy", [Constant, Never, ChangesWhatItGets])
def test_where_a_class_does_not_decide_least_work_does(policy):
    first, placement = played(policy)
    assert first == {"a": 10, "b": 10, "c": 10}
    assert bool(placement.fallbacks) == (policy is not Constant)


def test_an_engine_that_a_class_cannot_score_comes_after_those_that_it_can():
    first, placement = played(FailsForOne, capacity=12)
    assert first == {"a": 6, "b": 12, "c": 12}
    assert placement.fault == "score returns NaN, not a number"


def test_placement_class_never_overrides_the_minimum_weight_version():
    world, [old, new] = ready_world("a", "b", rules=replace(RULES, policy=ByPrompt))
    world.handle(events.WeightsWanted(Weights(1, "d" * 64, (), "token", 1)))
    new.load_wanted()
    for number in range(10):
        world.submit(f"r{number}", 20, seed=number, min_weight_version=1)
    assert (len(old.attempts), len(new.attempts)) == (0, 10)


ENGINE = EngineView("e" * 32, "one", "", 2.0, 10, 4, 600.0, 40, 0.5, 80.0, 20.0, 3, 7)
REQUEST = RequestView("run", "g", "", (1,), 0, 100, 160.0, 0, 0, False, "")


@pytest.mark.parametrize(
    ("name", "score", "cost"),
    [("least_work", 8.0, 2.0), ("least_loaded", 0.4, 0.1), ("round_robin", 7, None)],
)
def test_the_three_policies_are_written_on_the_interface_of_a_users_class(name, score, cost):
    policy = BUILT_IN[name]()
    assert number_from(policy.score, ENGINE) == score
    assert not looks_at_requests(policy)
    cost_of = getattr(policy, "response_cost", None)
    assert (cost_of and number_from(cost_of, ENGINE, REQUEST)) == cost


class Odd:
    def __init__(self, answer):
        self.answer = answer

    def score(self, engine):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (float("nan"), "score returns NaN, not a number"),
        (None, "score returns NoneType, not a number"),
        ("3", "score returns str, not a number"),
        (10**400, "score raises OverflowError: "),
        (ZeroDivisionError("division\nby zero"), "score raises ZeroDivisionError: division$"),
        (SystemExit(0), "score raises SystemExit: 0"),
    ],
)
def test_what_is_no_number_is_a_fault_that_says_so(answer, message):
    with pytest.raises(PolicyFault, match=message):
        number_from(Odd(answer).score, ENGINE)


@pytest.mark.parametrize("answer", [True, 3, -2.5, float("inf"), float("-inf")])
def test_every_other_number_is_a_score(answer):
    assert number_from(Odd(answer).score, ENGINE) == answer


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (lambda engine: 0.0, False),
        (lambda engine, request: 0.0, True),
        (lambda engine, request=None: 0.0, True),
        (lambda *views: 0.0, True),
    ],
)
def test_the_signature_says_what_a_policy_looks_at(score, expected):
    policy = Odd(0)
    policy.score = score
    assert looks_at_requests(policy) is expected
