"""Packs sequences into micro-batches and assigns these to ranks: pure functions of lengths and prefixes.

A family is a run of a chain (`prefixes.py`) in which each sequence shares a prefix with the one before it. It
lies together, so that the prefix is computed once, until its micro-batch is full or has its part of the work.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, NotRequired, TypedDict, Unpack

from rl_agent.trainer.grpo.data.images import PlacedImage
from rl_agent.trainer.grpo.data.prefixes import Chain, first_of, shared_tokens

Plan = list[list[list[int]]]
"""The micro-batches of each rank, each a list of indices into the lengths that were planned."""


ATTENTION_CROSSOVER = 16_384
"""Tokens of a sequence whose attention costs as much as all else, for models of a few billion parameters.
Only the balance between ranks depends on it."""
KEYS_PER_TOKEN = 8
"""Shared tokens that count as one in the budget. Each sequence has a copy of their keys and values, which are
3 to 12 % of what a layer keeps of a token that it computes."""


class Limits(TypedDict):
    token_budget: int
    ranks: int
    image_cost: NotRequired[float]
    """The work of the tower for a token of an image, in tokens of a short text."""


class _Part(NamedTuple):
    """A sequence in a micro-batch that has the first `shared` tokens of it already."""

    sequence: int
    length: int
    shared: int
    images: Sequence[PlacedImage] = ()
    image_cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.length - self.shared + self.shared // KEYS_PER_TOKEN

    @property
    def cost(self) -> float:
        of_images = sum(image.tokens for image in self.images if image.start >= self.shared)
        return _cost(self.length) - _cost(self.shared) + self.image_cost * of_images

    @property
    def alone(self) -> "_Part":
        return self._replace(shared=0)


def plan_micro_batches(
    lengths: Sequence[int],
    chain: Chain,
    images: Sequence[Sequence[PlacedImage]] = (),
    **limits: Unpack[Limits],
) -> Plan:
    """Pack all sequences into micro-batches.

    What holds: every index is in exactly one micro-batch; a micro-batch has at most `token_budget` tokens,
    or one sequence that is longer than that; all ranks have the same number of micro-batches (collectives
    need that), some of which are empty where there are fewer sequences than places. Micro-batches that run
    at the same time on different ranks cost about the same, and so do all ranks in total. A token of a
    sequence of length L costs 1 + L / `ATTENTION_CROSSOVER`, and one of an image `image_cost` more; a prefix
    that is shared in a micro-batch costs once.
    """
    budget, ranks = limits["token_budget"], limits["ranks"]
    families = _families(lengths, chain, images, limits.get("image_cost", 0.0))
    places = ranks * max(1, -(-_room(families, budget) // (budget * ranks)))
    while (bins := _fill(families, places, budget, is_row=places == ranks)) is None:
        places += ranks
    by_cost = sorted(bins, key=lambda parts: sum(part.cost for part in parts), reverse=True)
    plan: list[list[list[int]]] = [[] for _ in range(ranks)]
    for start in range(0, places, ranks):
        row = by_cost[start : start + ranks]
        # Every second row is dealt backwards, so that no rank always gets the costliest.
        for rank, parts in enumerate(row if start // ranks % 2 == 0 else reversed(row)):
            plan[rank].append([part.sequence for part in parts])
    return plan


def plan_full_micro_batch(
    lengths: Sequence[int],
    chain: Chain,
    images: Sequence[Sequence[PlacedImage]] = (),
    **limits: Unpack[Limits],
) -> tuple[Plan, int]:
    """Pack as many of the first sequences as fit into one micro-batch a rank; returns how many these are too.

    None if they do not fill it: they are better packed with those to come.
    """
    budget, ranks = limits["token_budget"], limits["ranks"]

    def room(count: int) -> int:
        return _room(_families(lengths, first_of(chain, count)), budget)

    taken = 0
    if room(len(lengths)) >= budget * ranks:
        taken = bisect_right(range(len(lengths) + 1), budget * ranks, key=room) - 1
    while True:
        plan = plan_micro_batches(lengths, first_of(chain, taken), images, **limits)
        if len(plan[0]) == 1:
            return plan, taken
        taken -= 1


def budget_tokens(lengths: Sequence[int], chain: Chain) -> int:
    """Return how many tokens of a budget the sequences take together."""
    return sum(part.tokens for family in _families(lengths, chain) for part in family)


def _families(
    lengths: Sequence[int],
    chain: Chain,
    images: Sequence[Sequence[PlacedImage]] = (),
    image_cost: float = 0.0,
) -> list[list[_Part]]:
    families: list[list[_Part]] = []
    for index, common in chain:
        shared = shared_tokens(lengths[index], common)
        part = _Part(index, lengths[index], shared, images[index] if images else (), image_cost)
        if part.shared:
            families[-1].append(part)
        else:
            families.append([part])
    return families


def _cost(length: int) -> float:
    return length * (1 + length / ATTENTION_CROSSOVER)


def _room(families: Sequence[Sequence[_Part]], token_budget: int) -> int:
    """Return the tokens to be placed; a sequence that is longer than a budget fills just one of them."""
    return sum(min(part.tokens, token_budget) for family in families for part in family)


def _fill(
    families: Sequence[list[_Part]], places: int, token_budget: int, *, is_row: bool
) -> list[list[_Part]] | None:
    """Put the largest family first, each into the cheapest bin that has room; None if one finds no room.

    A family goes on in another bin where its own has no room. In a row, whose bins are all that ranks have to
    do, it also does so to balance them: where its own has more than its part of the work, and another one
    less in spite of a further copy of the prefix.
    """
    bins: list[list[_Part]] = [[] for _ in range(places)]
    tokens = [0] * places
    loads = [0.0] * places
    part_of_work = sum(part.cost for family in families for part in family) / places

    def cheapest(part: _Part) -> int | None:
        with_room = (p for p in range(places) if not bins[p] or tokens[p] + part.tokens <= token_budget)
        return min(with_room, key=loads.__getitem__, default=None)

    for family in sorted(families, key=lambda parts: sum(part.tokens for part in parts), reverse=True):
        place: int | None = None
        for part in family:
            if place is not None:
                load, has_room = loads[place] + part.cost, tokens[place] + part.tokens <= token_budget
                if has_room and is_row and load > part_of_work:
                    other = cheapest(part.alone)
                    has_room = other is None or loads[other] + part.alone.cost >= load
                place = place if has_room else None
            if place is None:
                part = part.alone
                place = cheapest(part)
            if place is None:
                return None
            bins[place].append(part)
            tokens[place] += part.tokens
            loads[place] += part.cost
    return bins
