"""What is expected of a response of which something was said."""

import random
import statistics
from itertools import pairwise

import pytest

from rl_agent.pool.lengths import SPREAD, rest_of


def test_nothing_made_leaves_what_was_told_and_the_rest_grows_beyond_it():
    assert rest_of(400, 0) == pytest.approx(400)
    assert rest_of(400, 200) < 400  # some of it is done
    rests = [rest_of(400, made) for made in (800, 1600, 3200, 6400)]
    assert rests == sorted(rests)
    assert rest_of(1, 0) >= 1 and rest_of(5, 10**6) < 10**6


def test_the_rest_never_jumps_where_the_tail_is_no_more_computed():
    rests = [rest_of(100, made) for made in range(1, 5000)]
    assert all(0 < after < 1.02 * before + 1 for before, after in pairwise(rests))


@pytest.mark.parametrize("made", [0, 100, 300, 900])
def test_it_is_the_mean_of_what_lies_beyond(made):
    random_ = random.Random(1)
    median = 300.0
    mean = median * 2.718281828 ** (SPREAD**2 / 2)
    lengths = [median * random_.lognormvariate(0, SPREAD) for _ in range(200_000)]
    beyond = [length - made for length in lengths if length > made]
    assert rest_of(mean, made) == pytest.approx(statistics.mean(beyond), rel=0.05)
