"""The length of a response is expected by what was said of it."""

import random
import statistics
from itertools import pairwise

import pytest

from rl_agent.pool.scheduler import length_model as pool_lengths
from rl_agent.pool.scheduler.dispatch import expected_tokens_left
from rl_agent.pool.scheduler.length_model import SPREAD, Lengths, remaining_tokens
from tests.support.pool_world import ready_world


def test_nothing_made_leaves_what_was_told_and_the_rest_grows_beyond_it():
    assert remaining_tokens(400, 0) == pytest.approx(400)
    assert remaining_tokens(400, 200) < 400  # some of it is done
    rests = [remaining_tokens(400, sampled) for sampled in (800, 1600, 3200, 6400)]
    assert rests == sorted(rests)
    assert remaining_tokens(1, 0) >= 1 and remaining_tokens(5, 10**6) < 10**6


def test_the_rest_never_jumps_where_the_tail_is_no_more_computed():
    rests = [remaining_tokens(100, sampled) for sampled in range(1, 5000)]
    assert all(0 < after < 1.02 * before + 1 for before, after in pairwise(rests))


@pytest.mark.parametrize("sampled", [0, 100, 300, 900])
def test_it_is_the_mean_of_what_lies_beyond(sampled):
    random_ = random.Random(1)
    median = 300.0
    mean = median * 2.718281828 ** (SPREAD**2 / 2)
    lengths = [median * random_.lognormvariate(0, SPREAD) for _ in range(200_000)]
    beyond = [length - sampled for length in lengths if length > sampled]
    assert remaining_tokens(mean, sampled) == pytest.approx(statistics.mean(beyond), rel=0.05)


def run_with(*ended: int, running: int = 0, earlier: int = 200) -> Lengths:
    """A group of which some have ended and others go on, in a run where 20 others took `earlier` tokens."""
    lengths = Lengths()
    over = [(f"before-{number}", earlier) for number in range(20)] + [("group", length) for length in ended]
    for group, length in over:
        lengths.submitted("run", group)
        lengths.made("run", group, length)
        lengths.ended("run", group, length)
    for _ in range(4):
        lengths.submitted("run", "group")
        lengths.made("run", "group", running)
    return lengths


def test_group_estimate_follows_its_siblings_more_as_more_have_ended():
    means = [run_with(*[800] * ended).mean("run", "group") for ended in (0, 1, 4, 16)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(200, rel=0.1) and 650 < means[-1] < 800


def test_what_its_siblings_have_made_already_counts_before_any_has_ended():
    assert run_with(running=600).mean("run", "group") > 2 * run_with(running=0).mean("run", "group")


def test_short_ones_that_end_first_do_not_make_the_others_short():
    """Half of them have ended; the mean of those is far below that of all."""
    random_ = random.Random(1)
    all_ = sorted(round(400 * random_.lognormvariate(0, 0.8)) for _ in range(2000))
    half, lengths = all_[1000], Lengths()
    for length in all_:
        lengths.submitted("run", "group")
        lengths.made("run", "group", min(length, half))
        if length <= half:
            lengths.ended("run", "group", length)
    assert lengths.mean("run", "group") > 0.9 * statistics.mean(all_)


def test_nothing_is_said_of_one_alone_nor_while_little_has_ended():
    lengths = run_with()
    lengths.submitted("run", "alone")
    assert lengths.mean("run", "alone") is None and lengths.mean("run", None) is None
    assert lengths.mean("other", "group") is None
    for _ in range(2):
        lengths.submitted("new", "group")
        lengths.ended("new", "group", 1)
    assert lengths.mean("new", "group") is None


def test_request_without_a_hint_is_expected_to_be_like_its_siblings():
    world, _ = ready_world("a", capacity=4)
    for number in range(12):
        for group, length in (("short", 40), ("long", 400)):
            world.submit(f"{group}-{number}", length, group=group)
    while world.state.account.completed < 10:
        world.run(world.now + 1.0)
    last = [expected_tokens_left(world.state, world.request(f"{group}-11")) for group in ("short", "long")]
    assert last[1] > 2 * last[0]


def test_groups_are_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr(pool_lengths, "MAX_GROUPS", 2)
    lengths = run_with()
    for group in ("a", "a", "b", "b", "c", "c"):
        lengths.submitted("run", group)
    assert [lengths.mean("run", group) is None for group in "abc"] == [True, False, False]
