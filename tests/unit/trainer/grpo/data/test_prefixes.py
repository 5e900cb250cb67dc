"""Sequences that begin alike are found, whatever their order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.trainer.grpo.data.prefixes import chain_of, first_of, shared_prefixes, shared_tokens

SEQUENCES = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=6), max_size=12)


def arrays(lists: list[list[int]]) -> list[np.ndarray]:
    return [np.array(tokens, np.int32) for tokens in lists]


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(SEQUENCES)
def test_a_chain_has_the_longest_prefix_of_any_sequence_before(lists):
    before: list[list[int]] = []
    for index, tokens in chain_of(arrays(lists)):
        assert tokens == max((common(earlier, lists[index]) for earlier in before), default=0)
        before.append(lists[index])
    assert sorted(before) == before
    assert len(before) == len(lists)


@given(SEQUENCES, st.integers(0, 12))
def test_the_chain_of_the_first_sequences_is_that_of_them_alone(lists, count):
    assert first_of(chain_of(arrays(lists)), count) == chain_of(arrays(lists[:count]))


def test_a_short_prefix_is_not_shared_and_one_token_is_always_own():
    assert [shared_tokens(*pair) for pair in ((100, 3), (100, 50), (100, 100), (1, 1))] == [0, 50, 99, 0]


def test_shared_prefixes_are_those_of_siblings_and_of_groups():
    lists = [[1, 2, 3, 10], [7, 8], [1, 2, 3, 11], [1, 2, 4], [1, 2, 3, 10]]
    assert sorted(shared_prefixes(arrays(lists))) == [2, 3, 3]
