"""Moves of running requests: towards an earlier end, never for nothing."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_agent.pool.scheduler.rebalance import Remainder, Share, plan_moves
from tests.support.pool_world import World


def share(
    name: str, tokens: list[float], *, rate: float = 10.0, total: float = 100.0, room: int = 64
) -> Share:
    rests = [Remainder(value, f"{name}-{number}", 1.0, True) for number, value in enumerate(tokens)]
    return Share(name, rate, total, room, rests)


def test_the_end_of_an_engine_counts_who_is_still_there():
    # 20 at first share 100 tokens per second; the last one alone gets 10, not 100.
    assert share("a", [50.0] * 19 + [100.0]).ends_after_s == 50 * 20 / 100 + 50 / 10


def test_long_response_moves_to_the_fast_engine_and_short_ones_give_way():
    slow, fast = share("slow", [400.0]), share("fast", [20.0] * 10, rate=40.0, total=400.0, room=0)
    [there, back] = plan_moves([slow, fast], gain_s=1.0, limit=8)
    assert (there.request_id, there.target) == ("slow-0", "fast")
    assert (back.source, back.target) == ("fast", "slow")


FIXED = Share("slow", 10.0, 100.0, 64, [Remainder(400.0, "r0", 1.0, False)])
FAST = share("fast", [20.0] * 10, rate=40.0, total=400.0)


@pytest.mark.parametrize(
    ("shares", "gain_s", "waiting_tokens"),
    [
        ([FIXED, share("idle", [])], 0.1, 0.0),
        ([share("a", [100.0] * 11), share("b", [100.0] * 10)], 2.0, 0.0),
        ([share("slow", [400.0]), FAST], 1.0, 1e6),
    ],
    ids=["it cannot be continued", "too little is won", "more waits than the engine has"],
)
def test_a_request_stays_where_a_move_is_impossible_or_wins_nothing(shares, gain_s, waiting_tokens):
    assert not plan_moves(shares, gain_s=gain_s, limit=8, waiting_tokens=waiting_tokens)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
@example(seed=51223)
def test_moves_go_where_there_is_room_and_end_nothing_later(seed):
    random_ = random.Random(seed)
    shares = [
        share(
            f"e{number}",
            [random_.uniform(1, 4000) for _ in range(random_.randint(0, 100))],
            rate=random_.choice([10.0, 50.0]),
            total=random_.choice([100.0, 2000.0]),
            room=random_.choice([0, 3, 50]),
        )
        for number in range(random_.randint(1, 5))
    ]
    count = sum(len(each.rests) for each in shares)
    before_s = max(each.ends_after_s for each in shares)
    moves = plan_moves(shares, gain_s=0.5, limit=16)
    assert len(moves) <= 17
    assert sum(len(each.rests) for each in shares) == count
    assert all(each.room >= 0 for each in shares)
    assert max(each.ends_after_s for each in shares) <= before_s * 1.000001


def makespan(told: bool) -> float:
    random_ = random.Random(1)
    lengths = sorted(
        (max(2, min(4000, round(400 * random_.lognormvariate(0, 0.8)))) for _ in range(128)), reverse=told
    )
    world = World(is_checking=False)
    for number, speed in enumerate((30.0, 30.0, 60.0, 120.0)):
        world.join(f"engine-{number}", speed=speed, batch=8, capacity=8)
    world.run(1.0)
    for number, length in enumerate(lengths):
        world.submit(f"r{number}", length, seed=number, expected_tokens=length if told else None)
    world.run_to_a_right_end(1e6)
    bound = max(sum(lengths) / 1920, max(lengths) / 120)
    return (world.now - 1.0) / bound


def test_long_tailed_batch_of_known_lengths_ends_near_the_bound():
    assert makespan(told=True) < 1.1 < makespan(told=False)
