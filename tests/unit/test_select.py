"""Selection: who is a candidate, and how likely each is to be drawn."""

import math
import random
from itertools import permutations
from types import SimpleNamespace

import pytest

from rl_agent.types import EpisodeKey, Status
from rl_agent.update.select import (
    Candidate,
    Outcome,
    Response,
    StepOutcome,
    candidates,
    draw,
    seeded,
    split,
)

RULES = SimpleNamespace(reward_threshold=1.0, filter_unchanged_steps=True, min_response_tokens=0)
GOOD = StepOutcome(Response("stop", 20), 0.0, True)


def outcome(*steps, reward=1.0, status=Status.COMPLETED, name="t"):
    return Outcome(EpisodeKey(name, 0, 0), status, reward, steps)


def candidate(position: int, number: int = 0) -> Candidate:
    return Candidate(position, EpisodeKey(f"t{number}", 0, 0), 0)


def chosen_steps(an_outcome, rules=RULES):
    return [one.step for one in candidates([an_outcome], 0, rules)]


def test_every_step_of_a_positive_episode_is_a_candidate():
    pool = candidates([outcome(GOOD, GOOD, name="a"), outcome(GOOD, name="b")], 3, RULES)
    assert pool == [
        Candidate(3, EpisodeKey("a", 0, 0), 0),
        Candidate(3, EpisodeKey("a", 0, 0), 1),
        Candidate(3, EpisodeKey("b", 0, 0), 0),
    ]


@pytest.mark.parametrize(
    "negative",
    [
        outcome(GOOD, reward=0.99),
        outcome(GOOD, reward=None),
        outcome(GOOD, reward=math.nan),
        outcome(GOOD, reward=None, status=Status.FAILED),
        outcome(GOOD, reward=1.0, status=Status.TIMED_OUT),
        outcome(),
    ],
)
def test_an_episode_below_the_threshold_or_without_a_reward_has_none(negative):
    assert chosen_steps(negative) == []


def test_steps_that_changed_nothing_are_left_out_where_asked():
    still = StepOutcome(Response("stop", 20), 0.0, False)
    assert chosen_steps(outcome(GOOD, still, GOOD)) == [0, 2]
    keep_all = SimpleNamespace(**vars(RULES) | {"filter_unchanged_steps": False})
    assert chosen_steps(outcome(GOOD, still, GOOD), keep_all) == [0, 1, 2]


def test_a_truncated_response_counts_only_where_the_environment_rewarded_it():
    unrewarded = StepOutcome(Response("length", 20), 0.0, True)
    rewarded = StepOutcome(Response("length", 20), 1.0, True)
    aborted = StepOutcome(Response("abort", 20), 1.0, True)
    assert chosen_steps(outcome(unrewarded, rewarded, aborted, GOOD)) == [1, 3]


def test_responses_shorter_than_asked_are_left_out():
    short, enough = (StepOutcome(Response("stop", tokens), 1.0, True) for tokens in (9, 10))
    rules = SimpleNamespace(**vars(RULES) | {"min_response_tokens": 10})
    assert chosen_steps(outcome(short, enough, short), rules) == [1]
    assert chosen_steps(outcome(short, enough, short)) == [0, 1, 2]


def test_fewer_candidates_than_wanted_are_all_taken():
    pool = [candidate(0, 1), candidate(1, 2), candidate(3, 3)]
    assert sorted(draw(pool, 10, 2.0, random.Random(0)), key=pool.index) == pool
    assert draw([], 10, 2.0, random.Random(0)) == []


def test_no_candidate_is_drawn_twice():
    pool = [candidate(i % 4, i) for i in range(400)]
    drawn = draw(pool, 200, 2.0, random.Random(0))
    assert len(set(drawn)) == 200


def test_the_same_seed_and_iteration_draw_the_same_and_others_do_not():
    pool = [candidate(i % 4, i) for i in range(100)]
    first = draw(pool, 20, 2.0, seeded(7, 3))
    assert draw(pool, 20, 2.0, seeded(7, 3)) == first
    assert draw(pool, 20, 2.0, seeded(7, 4)) != first
    assert draw(pool, 20, 2.0, seeded(8, 3)) != first


def is_consistent(observed: list[int], expected: list[float]) -> bool:
    """Chi-squared below its mean plus five deviations; the seeds are fixed, so this cannot flake."""
    total = sum(observed)
    statistic = sum((o - total * e) ** 2 / (total * e) for o, e in zip(observed, expected, strict=True))
    freedom = len(observed) - 1
    return statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_the_first_draw_falls_on_iterations_as_documented():
    pool = [candidate(position, number) for position in range(4) for number in range(5)]
    rng = random.Random(1)
    counts = [0, 0, 0, 0]
    for _ in range(30_000):
        counts[draw(pool, 1, 2.0, rng)[0].position] += 1
    assert is_consistent(counts, [1 / 30, 4 / 30, 9 / 30, 16 / 30])
    assert not is_consistent(counts, [1 / 64, 7 / 64, 19 / 64, 37 / 64])  # weights by step, not iteration


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_sets_are_drawn_with_the_documented_probability(power):
    weights = [(p + 1) ** power for p in range(4)]
    expected: dict[frozenset[int], float] = {}
    for order in permutations(range(4), 2):
        first, second = order
        chance = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        expected[frozenset(order)] = expected.get(frozenset(order), 0.0) + chance

    pool = [candidate(position) for position in range(4)]
    rng = random.Random(2)
    counts = dict.fromkeys(expected, 0)
    for _ in range(30_000):
        counts[frozenset(one.position for one in draw(pool, 2, power, rng))] += 1

    assert math.isclose(sum(expected.values()), 1.0)
    assert is_consistent([counts[s] for s in expected], list(expected.values()))


def test_the_order_of_what_was_drawn_says_nothing_about_age():
    pool = [candidate(p, n) for p in range(2) for n in range(50)]
    rng = random.Random(3)
    firsts = [draw(pool, 100, 2.0, rng)[0].position for _ in range(2_000)]
    assert is_consistent([firsts.count(0), firsts.count(1)], [0.5, 0.5])


@pytest.mark.parametrize(
    ("count", "ratio", "do_eval", "training", "validation"),
    [
        (100, 0.05, True, 95, 5),
        (119, 0.05, True, 114, 5),
        (10, 0.05, True, 9, 1),
        (2, 0.99, True, 1, 1),
        (1, 0.5, True, 1, 0),
        (0, 0.5, True, 0, 0),
        (100, 0.05, False, 100, 0),
    ],
)
def test_the_validation_split(count, ratio, do_eval, training, validation):
    left, right = split(range(count), ratio, do_eval=do_eval)
    assert (len(left), len(right)) == (training, validation)
    assert sorted(left + right) == list(range(count))
