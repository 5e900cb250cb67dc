"""Cuts a rollout into chunks, and orders those that a rank tries to claim. Pure.

Every rank computes the same shares, so no node hands them out. A rank claims its own chunks from the front
and then those of other ranks from the back, which are the ones that their owner would come to last.
"""

import itertools
from collections.abc import Sequence

Indices = tuple[int, ...]
"""Positions of episodes in the sample of the iteration."""


def make_chunks(groups: Sequence[Sequence[int]], chunk_tasks: int) -> list[Indices]:
    """Cut groups into chunks of `chunk_tasks` tasks; a group is the episodes of one task, and stays whole."""
    filled = [group for group in groups if group]
    starts = range(0, len(filled), chunk_tasks)
    return [tuple(itertools.chain(*filled[start : start + chunk_tasks])) for start in starts]


def shares(count: int, weights: Sequence[int]) -> list[int]:
    """Divide `count` chunks in proportion to the weights, by largest remainder.

    Each share differs from the exact one by less than one chunk.
    """
    total = sum(weights)
    parts = [count * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (-(count * weights[rank] % total), rank))
    for rank in by_remainder[: count - sum(parts)]:
        parts[rank] += 1
    return parts


def owners(count: int, weights: Sequence[int]) -> list[int]:
    """Assign a rank to each chunk; ranks alternate, because tasks may be sorted by difficulty."""
    slots = [
        ((2 * turn + 1) / (2 * part), rank)
        for rank, part in enumerate(shares(count, weights))
        for turn in range(part)
    ]
    return [rank for _, rank in sorted(slots)]


def claim_order(
    count: int, weights: Sequence[int], rank: int, *, first: int = 0
) -> tuple[list[int], list[int]]:
    """Return the chunks that are meant for `rank`, and those of the others in the order to claim them.

    There are `count` chunks from number `first` on. A rank without a weight (a joiner) has none of its own.
    The others' are taken from the back, one of each rank in turn.
    """
    of_rank: dict[int, list[int]] = {other: [] for other in range(len(weights))}
    meant = owners(sum(weights) if first else count, weights)
    for chunk in range(first, first + count):
        # Batches that follow may be of one chunk each, and go round: none of them is shared out by itself.
        of_rank[meant[chunk % len(meant)]].append(chunk)
    own = of_rank.pop(rank, [])
    after_me = sorted(of_rank, key=lambda other: (other - rank) % len(weights))
    tails = itertools.zip_longest(*(reversed(of_rank[other]) for other in after_me))
    return own, [chunk for turn in tails for chunk in turn if chunk is not None]
