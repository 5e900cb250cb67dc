"""Packs sequences into micro-batches and assigns these to ranks: pure functions of lengths."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypedDict, Unpack

Plan = list[list[list[int]]]
"""The micro-batches of each rank, each a list of indices into the lengths that were planned."""


ATTENTION_CROSSOVER = 16_384
"""Tokens of a sequence whose attention costs as much as all else, for models of a few billion parameters.
Only the balance between ranks depends on it."""


class Limits(TypedDict):
    token_budget: int
    ranks: int


def plan_micro_batches(lengths: Sequence[int], *, token_budget: int, ranks: int) -> Plan:
    """Pack all sequences into micro-batches.

    What holds: every index is in exactly one micro-batch; a micro-batch has at most `token_budget` tokens,
    or one sequence that is longer than that; all ranks have the same number of micro-batches (collectives
    need that), some of which are empty where there are fewer sequences than places. Micro-batches that run
    at the same time on different ranks cost about the same, and so do all ranks in total. A token of a
    sequence of length L costs 1 + L / `ATTENTION_CROSSOVER`.
    """
    costs = [length * (1 + length / ATTENTION_CROSSOVER) for length in lengths]
    room = sum(min(length, token_budget) for length in lengths)  # one that is longer fills just one of them
    places = ranks * max(1, -(-room // (token_budget * ranks)))
    while (bins := _fill(lengths, costs, places, token_budget)) is None:
        places += ranks
    by_cost = sorted(bins, key=lambda indices: sum(costs[i] for i in indices), reverse=True)
    plan: list[list[list[int]]] = [[] for _ in range(ranks)]
    for start in range(0, places, ranks):
        row = by_cost[start : start + ranks]
        # Every second row is dealt backwards, so that no rank always gets the costliest.
        for rank, indices in enumerate(row if start // ranks % 2 == 0 else reversed(row)):
            plan[rank].append(indices)
    return plan


def plan_full_micro_batch(lengths: Sequence[int], **limits: Unpack[Limits]) -> tuple[Plan, int]:
    """Pack as many of the first sequences as fit into one micro-batch a rank; returns how many these are too.

    None if they do not fill it: they are better packed with those to come.
    """
    room = limits["token_budget"] * limits["ranks"]
    totals = list(accumulate(min(length, limits["token_budget"]) for length in lengths))
    taken = bisect_right(totals, room) if totals and totals[-1] >= room else 0
    while True:
        plan = plan_micro_batches(lengths[:taken], **limits)
        if len(plan[0]) == 1:
            return plan, taken
        taken -= 1


def _fill(
    lengths: Sequence[int], costs: Sequence[float], places: int, token_budget: int
) -> list[list[int]] | None:
    """Put the longest first, each into the cheapest bin that has room; None if one finds no room."""
    bins: list[list[int]] = [[] for _ in range(places)]
    tokens = [0] * places
    loads = [0.0] * places
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        with_room = (p for p in range(places) if not bins[p] or tokens[p] + lengths[index] <= token_budget)
        place = min(with_room, key=lambda p: loads[p], default=None)
        if place is None:
            return None
        bins[place].append(index)
        tokens[place] += lengths[index]
        loads[place] += costs[index]
    return bins
