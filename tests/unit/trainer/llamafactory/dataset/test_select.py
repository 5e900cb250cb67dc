"""Selection: who is a candidate, and how likely each is to be drawn."""

import math
import random
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import pytest

from rl_agent.trainer.llamafactory.dataset.select import (
    Candidate,
    Candidates,
    CompactionOutcome,
    ContextOutcome,
    EpisodeOutcome,
    ResponseOutcome,
    StepOutcome,
    draw,
    hold_out,
    seeded,
)
from rl_agent.types import EpisodeKey, Status


def rules(**changes) -> SimpleNamespace:
    return SimpleNamespace(
        **{"reward_threshold": 1.0, "filter_unchanged_steps": True, "cutoff_len": 1000} | changes
    )


RULES, SHORT = rules(), rules(cutoff_len=39)
PROMPT_TOKENS = 5
GOOD = StepOutcome(ResponseOutcome("stop", 20), 0.0, True, PROMPT_TOKENS)


def outcome(*steps, reward=1.0, status=Status.COMPLETED, name="t"):
    return EpisodeOutcome(EpisodeKey(name, 0, 0), 7, status, reward, steps)


def candidate(position: int, number: int = 0, attempt: int = 0, step: int = 0) -> Candidate:
    return Candidate(position, 10 + position, EpisodeKey(f"t{number}", 0, attempt), step)


def candidates(outcomes, position, rules) -> Candidates:
    collected = Candidates()
    collected.add(outcomes, position, rules)
    return collected


def chosen_steps(*outcomes, rules=RULES):
    return [candidate.step for candidate in candidates(outcomes, 0, rules).steps]


def test_every_step_of_a_positive_episode_is_a_candidate():
    eligible = candidates([outcome(GOOD, GOOD, name="a"), outcome(GOOD, name="b")], 3, RULES).steps
    expected = [("a", 0), ("a", 1), ("b", 0)]
    assert eligible == [Candidate(3, 7, EpisodeKey(name, 0, 0), step) for name, step in expected]


def test_an_episode_whose_reward_rounds_to_the_threshold_is_positive():
    lower = rules(reward_threshold=0.8)
    assert 0.7 + 0.1 < 0.8
    assert chosen_steps(outcome(GOOD, reward=0.7 + 0.1), rules=lower) == [0]
    assert chosen_steps(outcome(GOOD, reward=0.79), rules=lower) == []


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
    episode = outcome(GOOD, replace(GOOD, changed=False), GOOD)
    assert chosen_steps(episode) == [0, 2]
    assert chosen_steps(episode, rules=rules(filter_unchanged_steps=False)) == [0, 1, 2]


def test_a_truncated_response_counts_only_if_the_environment_rewarded_it():
    unrewarded, rewarded, aborted = (
        replace(GOOD, generation=ResponseOutcome(reason, 20), reward=reward)
        for reason, reward in (("length", 0.0), ("length", 1.0), ("abort", 1.0))
    )
    assert chosen_steps(outcome(unrewarded, rewarded, aborted, GOOD)) == [1, 3]


@pytest.mark.parametrize(
    ("cutoff_len", "chosen", "too_long"), [(75, [0, 1, 2], 0), (74, [0, 1], 1), (24, [], 3)]
)
def test_a_step_counts_if_its_whole_context_fits(cutoff_len, chosen, too_long):
    outcomes = [outcome(GOOD, GOOD, GOOD), outcome(GOOD, reward=0.0)]
    collected = candidates(outcomes, 0, rules(cutoff_len=cutoff_len))
    assert ([candidate.step for candidate in collected.steps], collected.too_long) == (chosen, too_long)


def test_a_context_that_was_sent_again_is_as_long_as_it_is():
    again = replace(GOOD, prompt_tokens=30, context_reset=True)
    assert chosen_steps(outcome(GOOD, GOOD, again), rules=rules(cutoff_len=50)) == [0, 1, 2]


def test_a_summary_of_a_positive_episode_is_a_candidate_of_its_own():
    summary = CompactionOutcome(ResponseOutcome("stop", 10), 30, 2)
    cut = CompactionOutcome(ResponseOutcome("length", 10), 30, 0)
    contexts = (ContextOutcome(1, (summary,)), ContextOutcome(0, (cut,)))
    steps = (GOOD, *(replace(GOOD, context_reset=True, seen=context) for context in contexts))
    eligible = candidates([outcome(*steps), outcome(*steps, reward=0.0)], 0, RULES).steps
    assert [(each.step, each.tokens, each.sampled, each.images) for each in eligible] == [
        (0, 25, 20, 0),
        (~1, 40, 10, 2),
        (1, 25, 20, 1),
        (2, 25, 20, 0),
    ]
    assert chosen_steps(outcome(*steps), rules=SHORT) == [0, 1, 2]


def test_the_same_seed_and_iteration_draw_the_same_and_others_do_not():
    eligible = [candidate(i % 4, i) for i in range(100)]
    first = draw(eligible, 20, 2.0, seeded(7, 3))
    assert draw(eligible, 20, 2.0, seeded(7, 3)) == first
    assert draw(eligible, 20, 2.0, seeded(7, 4)) != first
    assert draw(eligible, 20, 2.0, seeded(8, 3)) != first
    assert len(set(draw(eligible, 50, 2.0, seeded(7, 3)))) == 50, "none is drawn twice"


def is_consistent(observed: list[int], expected: list[float]) -> bool:
    """Chi-squared below its mean plus five deviations; the seeds are fixed, so this cannot flake."""
    total = sum(observed)
    statistic = sum((o - total * e) ** 2 / (total * e) for o, e in zip(observed, expected, strict=True))
    freedom = len(observed) - 1
    return statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_the_first_draw_falls_on_iterations_as_documented():
    eligible = [candidate(position, number) for position in range(4) for number in range(5)]
    rng = random.Random(1)
    counts = [0, 0, 0, 0]
    for _ in range(30_000):
        counts[draw(eligible, 1, 2.0, rng)[0].position] += 1
    assert is_consistent(counts, [1 / 30, 4 / 30, 9 / 30, 16 / 30])
    assert not is_consistent(counts, [1 / 64, 7 / 64, 19 / 64, 37 / 64])  # weights by step, not iteration


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_sets_are_drawn_with_the_documented_probability(power):
    weights = [(p + 1) ** power for p in range(4)]
    expected: dict[frozenset[int], float] = {}
    for first, second in permutations(range(4), 2):
        chance = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        expected[frozenset((first, second))] = expected.get(frozenset((first, second)), 0.0) + chance
    eligible = [candidate(position) for position in range(4)]
    rng = random.Random(2)
    counts = dict.fromkeys(expected, 0)
    for _ in range(30_000):
        counts[frozenset(each.position for each in draw(eligible, 2, power, rng))] += 1

    assert math.isclose(sum(expected.values()), 1.0)
    assert is_consistent([counts[s] for s in expected], list(expected.values()))


def test_the_order_of_what_was_drawn_says_nothing_about_age():
    eligible = [candidate(p, n) for p in range(2) for n in range(50)]
    rng = random.Random(3)
    firsts = [draw(eligible, 100, 2.0, rng)[0].position for _ in range(2_000)]
    assert is_consistent([firsts.count(0), firsts.count(1)], [0.5, 0.5])


def episodes(number: int, *, attempts: int, steps: int, position: int = 0) -> list[Candidate]:
    """The candidates of one group: so many successes of so many steps each."""
    return [
        candidate(position, number, attempt, step) for attempt in range(attempts) for step in range(steps)
    ]


SOLVED = [
    *episodes(0, attempts=1, steps=1),
    *episodes(1, attempts=4, steps=1),  # easy: all its attempts succeed
    *episodes(2, attempts=1, steps=3),  # long
]


@pytest.mark.parametrize(
    ("by", "shares"),
    [("group", [1 / 3, 1 / 3, 1 / 3]), ("episode", [1 / 6, 4 / 6, 1 / 6]), ("step", [1 / 8, 4 / 8, 3 / 8])],
)
def test_draws_count_alike_whatever_their_size(by, shares):
    rng = random.Random(4)
    firsts = [draw(SOLVED, 1, 2.0, rng, by=by)[0].key.task_id for _ in range(30_000)]
    assert is_consistent([firsts.count(f"t{number}") for number in range(3)], shares)


def test_episodes_of_a_group_and_steps_of_an_episode_are_equally_likely():
    group = [*episodes(0, attempts=1, steps=1), *(candidate(0, 0, 1, step) for step in range(4))]
    rng = random.Random(5)
    firsts = [draw(group, 1, 2.0, rng)[0] for _ in range(30_000)]
    assert is_consistent([firsts.count(each) for each in group], [1 / 2, *[1 / 8] * 4])


def test_an_exhausted_group_leaves_its_share_to_the_others():
    rng = random.Random(6)
    pairs = [{each.key.task_id for each in draw(SOLVED, 2, 0.0, rng)} for _ in range(30_000)]
    # First one of the three, then, if that was the only step of task 0, one of the other two.
    same_again = sum(len(pair) == 1 for pair in pairs)
    assert is_consistent([same_again, len(pairs) - same_again], [2 / 9, 7 / 9])


@pytest.mark.parametrize("by", ["group", "episode", "step"])
def test_single_step_episodes_and_single_success_groups_are_drawn_as_steps(by):
    eligible = [candidate(position, number) for position in range(4) for number in range(50)]
    drawn = draw(eligible, 60, 2.0, seeded(7, 3), by=by)
    keyed = [
        (math.log1p(-rng.random()) / (each.position + 1) ** 2.0, each)
        for rng in [seeded(7, 3)]
        for each in eligible
    ]
    assert set(drawn) == {each for _, each in sorted(keyed, key=lambda pair: -pair[0])[:60]}


@pytest.mark.parametrize("by", ["group", "episode", "step"])
def test_everything_is_drawn_where_there_is_no_more_and_nothing_twice(by):
    drawn = draw(SOLVED, 100, 2.0, random.Random(0), by=by)
    assert len(drawn) == len(SOLVED)
    assert set(drawn) == set(SOLVED)


DRAWN = [
    each
    for position in range(3)
    for number in range(200)
    for each in episodes(number, attempts=2, steps=2, position=position)
]


def test_no_task_is_trained_on_and_validated():
    training, validation = hold_out(DRAWN, 0.1, seed=3)
    assert sorted([*training, *validation], key=DRAWN.index) == DRAWN
    tasks = [{each.key.task_id for each in part} for part in (training, validation)]
    assert tasks[0].isdisjoint(tasks[1])
    share = len(tasks[1]) / (len(tasks[0]) + len(tasks[1]))
    assert 0.05 < share < 0.16


def test_a_task_is_held_out_in_every_update_or_in_none():
    tasks = [{each.key.task_id for each in hold_out(part, 0.1, seed=3)[1]} for part in (DRAWN, DRAWN[:1200])]
    assert tasks[0] == tasks[1]
    other = {each.key.task_id for each in hold_out(DRAWN, 0.1, seed=4)[1]}
    assert other != tasks[0]


@pytest.mark.parametrize("ratio", [0.001, 0.999])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_both_parts_have_a_task_where_there_are_two(count, ratio):
    training, validation = hold_out([candidate(0, number) for number in range(count)], ratio, seed=0)
    assert training and validation


def test_one_task_is_all_trained_on():
    group = episodes(0, attempts=3, steps=2)
    assert hold_out(group, 0.5, seed=0) == (group, [])
    assert hold_out([], 0.5, seed=0) == ([], [])
