"""How a rollout is cut into chunks, and in which order a rank tries to claim them. Pure.

Every rank computes the same shares, so nobody hands them out. A rank takes its own chunks from the front and,
when they are gone, those of the others from the back: it meets the owner where that one has got to.
"""

import itertools
from collections.abc import Sequence

Indices = tuple[int, ...]
"""Positions of episodes in the sample of the iteration."""


def make_chunks(groups: Sequence[Sequence[int]], chunk_tasks: int) -> list[Indices]:
    """`chunk_tasks` tasks each; a group is the episodes of one task, and stays together."""
    filled = [group for group in groups if group]
    starts = range(0, len(filled), chunk_tasks)
    return [tuple(itertools.chain(*filled[start : start + chunk_tasks])) for start in starts]


def shares(count: int, weights: Sequence[int]) -> list[int]:
    """How many of `count` chunks each weight gets, by largest remainder.

    They add up, and each differs from the exact share by less than one.
    """
    total = sum(weights)
    parts = [count * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (-(count * weights[rank] % total), rank))
    for rank in by_remainder[: count - sum(parts)]:
        parts[rank] += 1
    return parts


def owners(count: int, weights: Sequence[int]) -> list[int]:
    """The rank that each chunk is meant for. Ranks alternate, because tasks may be sorted by difficulty."""
    slots = [
        ((2 * turn + 1) / (2 * part), rank)
        for rank, part in enumerate(shares(count, weights))
        for turn in range(part)
    ]
    return [rank for _, rank in sorted(slots)]


def claim_order(
    count: int, weights: Sequence[int], rank: int, *, first: int = 0
) -> tuple[list[int], list[int]]:
    """Chunks that are meant for `rank`, and then those of the others: from the back, one of each in turn.

    Of `count` chunks from number `first` on. A rank without a weight (a joiner) has none of its own.
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
