"""Finds what token sequences have in common at their beginnings: pure functions of token ids.

Siblings have their prompt in common, groups a system prompt, segments of an episode what a context policy
kept. In sorted order a sequence has its longest common prefix with the one before it, so a chain of
neighbours says what a tree would.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_SHARE = 1 / 16
"""The share of a sequence from which on its prefix is shared. Below it, what is saved is little more than
what the copied keys cost, and sequences that may lie anywhere fill micro-batches better."""


class Neighbour(NamedTuple):
    """A sequence in sorted order."""

    sequence: int
    """Its index."""
    common: int
    """The tokens that it has in common with the one before it."""


Chain = Sequence[Neighbour]
"""Sequences in sorted order."""


def chain_of(sequences: Sequence[NDArray[np.int32]]) -> list[Neighbour]:
    """Sort the sequences, and compare each with the one before it."""
    keys = [tokens.astype(">i4").tobytes() for tokens in sequences]  # bytes sort as the numbers do
    order = sorted(range(len(keys)), key=keys.__getitem__)
    before = [np.zeros(0, np.int32), *(sequences[index] for index in order)]
    return [
        Neighbour(index, _common(tokens, sequences[index]))
        for tokens, index in zip(before, order, strict=False)
    ]


def chain_apart(count: int) -> list[Neighbour]:
    """Return the chain of sequences of which each is computed by itself."""
    return [Neighbour(index, 0) for index in range(count)]


def first_of(chain: Chain, count: int) -> list[Neighbour]:
    """Return the chain of the sequences with an index below `count`."""
    kept: list[Neighbour] = []
    common = sys.maxsize
    for neighbour in chain:
        common = min(common, neighbour.common)
        if neighbour.sequence < count:
            kept.append(Neighbour(neighbour.sequence, common))
            common = sys.maxsize
    return kept


def shared_tokens(length: int, common: int) -> int:
    """Return how many tokens of a sequence are taken from the one before: all in common, or none.

    At least one token is its own.
    """
    return min(common, length - 1) if common >= LEAST_SHARE * length else 0


def shared_prefixes(sequences: Sequence[NDArray[np.int32]]) -> list[int]:
    """List the lengths of the prefixes that a micro-batch of these sequences does not compute again."""
    shared = [shared_tokens(len(sequences[index]), common) for index, common in chain_of(sequences)]
    return [tokens for tokens in shared if tokens]


def _common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
