"""A request that crashes engines is told from one that merely ran beside it."""

import dataclasses

import pytest

from rl_agent.pool.scheduler import crash_suspects
from rl_agent.pool.scheduler.records import Engine, EngineOffer, EngineState, Order, Request, RequestId
from tests.support.pool_world import RULES

RULES_HERE = dataclasses.replace(RULES, engine_deaths_limit=2, min_progress_tokens=4, max_broken_attempts=3)


def a_request(tokens: int = 0) -> Request:
    order = Order(RequestId("run", "r"), (1, 2), 64, {}, deadline=1e9)
    request = Request(order, 0, 0.0)
    request.token_ids.extend(range(tokens))
    return request


def an_engine(name: str) -> Engine:
    return Engine(EngineOffer(f"{name}#1", name, 4), EngineState.READY, 0.0, 10.0, 0.0)


def dies_under(request: Request, name: str, unrelated_deaths: int = 0) -> None:
    engine = an_engine(name)
    crash_suspects.broke(request, engine, RULES_HERE)
    crash_suspects.died(request, engine, unrelated_deaths)


def test_request_without_progress_is_suspected_until_its_engine_is_alive():
    request, engine = a_request(), an_engine("a")
    crash_suspects.broke(request, engine, RULES_HERE)
    assert crash_suspects.is_suspect(request)
    assert list(engine.broken) == [request.order.request_id]
    crash_suspects.lives(request, engine)
    assert not crash_suspects.is_suspect(request)
    assert request.broken_attempts == 1


def test_progress_clears_a_request_and_counts_from_its_furthest_token():
    """Else a request that crashes engines at token 9 would be cleared by each repetition of 1 to 8."""
    request = a_request(tokens=8)
    crash_suspects.broke(request, an_engine("a"), RULES_HERE)
    assert request.reached == 8 and not crash_suspects.is_suspect(request)
    assert crash_suspects.is_stuck(request, RULES_HERE)
    request.token_ids.extend(range(RULES_HERE.min_progress_tokens))
    assert not crash_suspects.is_stuck(request, RULES_HERE)


def test_who_was_to_get_a_long_chunk_is_excused_once():
    request, engine = a_request(), an_engine("a")
    request.interval = RULES_HERE.min_progress_tokens + 1
    crash_suspects.broke(request, engine, RULES_HERE)
    assert request.is_excused
    assert not crash_suspects.is_suspect(request)
    crash_suspects.broke(request, engine, RULES_HERE)
    assert crash_suspects.is_suspect(request)


def test_suspect_waits_while_it_may_have_crashed_all_engines_it_may():
    request = a_request()
    dies_under(request, "a")
    assert not crash_suspects.must_wait(request, RULES_HERE)
    crash_suspects.broke(request, an_engine("b"), RULES_HERE)
    assert crash_suspects.must_wait(request, RULES_HERE)


@pytest.mark.parametrize(
    ("deaths", "unrelated", "is_cause"),
    [
        (["a"], 0, False),
        (["a", "b"], 0, True),
        (["a", "a", "a"], 0, False),
        (["a", "a", "a", "a"], 0, True),  # a pool of one machine
        (["a", "b"], 2, False),  # as many engines died where nothing was stuck
    ],
)
def test_request_is_the_crash_cause_after_enough_engine_deaths(deaths, unrelated, is_cause):
    request = a_request()
    for name in deaths:
        dies_under(request, name)
    assert crash_suspects.is_cause_of_crashes(request, RULES_HERE, unrelated) is is_cause


def test_progress_on_trial_clears_a_suspect_and_frees_its_engine():
    request, engine = a_request(), an_engine("b")
    dies_under(request, "a")
    engine.suspect = request.order.request_id
    crash_suspects.progressed(request, engine, RULES_HERE)
    assert engine.suspect == request.order.request_id  # not a token yet
    request.token_ids.extend(range(RULES_HERE.min_progress_tokens))
    crash_suspects.progressed(request, engine, RULES_HERE)
    assert engine.suspect is None
    assert not crash_suspects.is_suspect(request)


@pytest.mark.parametrize("names", ["ab", "aaaa"], ids=["several engines", "one engine"])
def test_request_fails_after_wrong_answers_of_several_engines_or_one(names):
    request = a_request()
    for number, name in enumerate(names, start=1):
        crash_suspects.wrong_answers_of(request, an_engine(name), RULES_HERE)
        assert crash_suspects.is_cause_of_wrong_answers(request, RULES_HERE) is (number == len(names))


def test_healthy_engines_that_keep_breaking_a_request_off_are_counted():
    request = a_request()
    for number in range(1, 4):
        engine = an_engine("a")
        crash_suspects.broke(request, engine, RULES_HERE)
        crash_suspects.lives(request, engine)
        assert crash_suspects.is_broken_off(request, RULES_HERE) is (number == 3)
