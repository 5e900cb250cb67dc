"""Length model: predicts how many tokens a response still needs. Pure.

    a mean is known, told by the submitter or learned from siblings   `rest_of` that mean
    only others of the run have ended                                 their mean beyond the tokens it has

What a submitter says, or siblings that ended show, is not the length but tells about it: lengths are taken to
be lognormal around it. So a response that is already longer than was said is expected to go on the longer,
and short ones that were said to be long do not hold up a plan for long.

Of siblings, the tokens that a group has got, over how many of it have ended, is the mean of its lengths
however few have ended yet, where the mean of those that ended would be too short.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

SPREAD = 0.6
"""Standard deviation of the logarithm of a length, given what is known."""
_FAR = 5.0
"""Standard deviations beyond which a tail is no more computed, only taken to go on."""
RUN_WEIGHT = 4.0
"""Responses of a group that count as much as the whole run."""
FEW = 8
"""Responses of a run that must have ended before anything is said of its groups."""
HALVED_AT = 4096
"""Responses after which older ones count half: a policy that learns, learns to speak longer or shorter."""
MAX_GROUPS = 65_536
"""The most groups of all runs together; the one that began first is forgotten."""
_BUCKETS = tuple(int(1.25**power) for power in range(4, 60))


class Distribution:
    """Distribution of lengths in geometric buckets; recent ones count more."""

    def __init__(self) -> None:
        self._counts = [0.0] * (len(_BUCKETS) + 1)
        self._sums = [0.0] * (len(_BUCKETS) + 1)
        self._total = 0

    def add(self, length: int) -> None:
        bucket = bisect_right(_BUCKETS, length)
        self._counts[bucket] += 1.0
        self._sums[bucket] += length
        self._total += 1
        if self._total % HALVED_AT == 0:
            self._counts = [value / 2 for value in self._counts]
            self._sums = [value / 2 for value in self._sums]

    def rest(self, length: int, max_tokens: int) -> float:
        """Return the expected tokens beyond `length`; at least 1, and growing where tails are long."""
        above = bisect_right(_BUCKETS, length) + 1 if length else 0
        seen = sum(self._counts[above:])
        if seen < 1.0:
            # Nothing as long as this has ended yet: a tail doubles; a first request may use all it may.
            guess = float(length) if self._total else max_tokens / 2
        else:
            guess = sum(self._sums[above:]) / seen - length
        return max(1.0, min(guess, float(max_tokens - length)))


@dataclass(slots=True)
class _Seen:
    """Counts of some requests."""

    submitted: int = 0
    tokens: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class _Run:
    seen: _Seen = field(default_factory=_Seen)
    lengths: Distribution = field(default_factory=Distribution)


class Lengths:
    """Lengths of the responses of each run, and of each group in it."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._groups: dict[tuple[str, str], _Seen] = {}

    def submitted(self, run: str, group: str | None) -> None:
        self._runs.setdefault(run, _Run())
        if group is None:
            return
        if (run, group) not in self._groups and len(self._groups) >= MAX_GROUPS:
            del self._groups[next(iter(self._groups))]
        self._groups.setdefault((run, group), _Seen()).submitted += 1

    def made(self, run: str, group: str | None, tokens: int) -> None:
        for seen in self._of(run, group):
            seen.tokens += tokens

    def ended(self, run: str, group: str | None, length: int) -> None:
        """Record that a response is complete, and its length."""
        if of_run := self._runs.get(run):
            of_run.lengths.add(length)
        for seen in self._of(run, group):
            seen.ended += 1
            if seen.ended >= HALVED_AT:
                seen.ended, seen.tokens = seen.ended / 2, seen.tokens / 2

    def mean(self, run: str, group: str | None) -> float | None:
        """Return the mean length of a group; None if it has no siblings or the run is little known."""
        of_run, of_group = self._runs.get(run), self._groups.get((run, group or ""))
        if of_run is None or of_group is None or of_run.seen.ended < FEW or of_group.submitted < 2:
            return None
        usual = RUN_WEIGHT * of_run.seen.tokens / of_run.seen.ended
        return (of_group.tokens + usual) / (of_group.ended + RUN_WEIGHT)

    def rest(self, run: str, length: int, max_tokens: int) -> float:
        """Return the expected tokens left after `length`, from other responses of the run; at least 1."""
        of_run = self._runs.get(run) or _Run()
        return of_run.lengths.rest(length, max_tokens)

    def _of(self, run: str, group: str | None) -> Iterator[_Seen]:
        if of_run := self._runs.get(run):
            yield of_run.seen
        if group is not None and (of_group := self._groups.get((run, group))):
            yield of_group


def remaining_tokens(mean: float, length: int) -> float:
    """Return the expected tokens left after `length`, if `told` is the mean length; at least 1."""
    return max(1.0, _mean_beyond(math.log(max(1.0, mean)) - SPREAD**2 / 2, length) - length)


def _mean_beyond(center: float, length: int) -> float:
    """Return the mean of the lengths above `length`, if their logarithms are normal around `center`."""
    mean = math.exp(center + SPREAD**2 / 2)
    if length < 1:
        return mean
    deviations = (math.log(length) - center) / SPREAD
    if deviations > _FAR:
        return length * (1 + SPREAD / deviations)
    return mean * _above(deviations - SPREAD) / _above(deviations)


def _above(deviations: float) -> float:
    """Return the share of a normal distribution above a number of standard deviations."""
    return 0.5 * math.erfc(deviations / math.sqrt(2))
