"""A rollout is cut, shared out and claimed."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rl_agent.cluster.protocol.chunks import claim_order, make_chunks, owners, shares

WEIGHTS = st.lists(st.integers(1, 50), min_size=1, max_size=16)
COUNTS = st.integers(0, 300)


def test_chunks_hold_whole_tasks_in_order_and_none_twice():
    groups = [[0, 1], [2, 3], [4, 5], [], [6]]
    assert make_chunks(groups, 2) == [(0, 1, 2, 3), (4, 5, 6)]
    assert make_chunks([], 8) == []


@given(COUNTS, WEIGHTS)
def test_shares_add_up_and_differ_from_the_exact_ones_by_less_than_a_chunk(count, weights):
    parts = shares(count, weights)
    assert sum(parts) == count
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - Fraction(count * weight, sum(weights))) < 1


@given(COUNTS, WEIGHTS)
def test_every_chunk_is_meant_for_one_rank_and_the_shares_are_kept(count, weights):
    meant = owners(count, weights)
    assert [meant.count(rank) for rank in range(len(weights))] == shares(count, weights)


@given(COUNTS, WEIGHTS, st.integers(0, 20))
def test_whoever_comes_tries_every_chunk_once_its_own_first(count, weights, rank):
    own, others = claim_order(count, weights, rank)
    assert sorted(own + others) == list(range(count))
    assert own == [chunk for chunk, owner in enumerate(owners(count, weights)) if owner == rank]


def test_ranks_alternate_so_that_no_rank_has_all_hard_tasks():
    assert owners(8, (1, 1)) == [0, 1] * 4
    assert sorted(owners(8, (1, 3))[:4]) == [0, 1, 1, 1]


def test_a_helper_takes_the_last_chunk_of_each_of_the_others_in_turn():
    assert claim_order(6, (1, 1, 1), 1) == ([1, 4], [5, 3, 2, 0])
    assert claim_order(6, (1, 1), 7) == ([], [5, 4, 3, 2, 1, 0])


@given(COUNTS, WEIGHTS, st.lists(st.integers(1, 3), max_size=40))
def test_small_batches_that_follow_go_to_the_ranks_in_turn(first, weights, batches):
    meant = [0] * len(weights)
    for count in batches:
        for rank in range(len(weights)):
            own, others = claim_order(count, weights, rank, first=first)
            assert sorted(own + others) == list(range(first, first + count))
            meant[rank] += len(own)
        first += count
    added = sum(batches)
    for part, weight in zip(meant, weights, strict=True):
        assert abs(part - Fraction(added * weight, sum(weights))) < 3
