"""How long a response will still be, where something is known of it. Pure.

What a submitter says, or siblings that ended show, is not the length but tells about it: lengths are taken to
be lognormal around it. So a response that is already longer than was said is expected to go on the longer,
and short ones that were said to be long do not hold up a plan for long.

Where nothing was said, `Siblings` learns it: the tokens that a group has got, over how many of it have ended,
is the mean of its lengths however few have ended yet, where the mean of those that ended would be too short.
"""

import math
from dataclasses import dataclass

SPREAD = 0.6
"""Standard deviation of the logarithm of a length, given what is known."""
_FAR = 5.0
"""Standard deviations beyond which a tail is no more computed, only taken to go on."""


RUN_WEIGHT = 4.0
"""Responses of a group that count as much as the whole run."""
FEW = 8
"""Responses of a run that must have ended before anything is said."""
HALVED_AT = 4096.0
"""Responses after which older ones count half: a policy that learns, learns to speak longer or shorter."""
MAX_GROUPS = 65_536


@dataclass(slots=True)
class Seen:
    """Of some requests."""

    submitted: int = 0
    tokens: float = 0.0
    ended: float = 0.0


class Siblings:
    """What the requests of each run, and of each group in it, have taken so far."""

    def __init__(self) -> None:
        self._runs: dict[str, Seen] = {}
        self._groups: dict[tuple[str, str], Seen] = {}

    def submitted(self, run: str, group: str | None) -> None:
        self._runs.setdefault(run, Seen()).submitted += 1
        if group is None:
            return
        if (run, group) not in self._groups and len(self._groups) >= MAX_GROUPS:
            del self._groups[next(iter(self._groups))]
        self._groups.setdefault((run, group), Seen()).submitted += 1

    def made(self, run: str, group: str | None, tokens: int) -> None:
        for seen in self._of(run, group):
            seen.tokens += tokens

    def ended(self, run: str, group: str | None) -> None:
        for seen in self._of(run, group):
            seen.ended += 1
            if seen.ended >= HALVED_AT:
                seen.ended, seen.tokens = seen.ended / 2, seen.tokens / 2

    def mean(self, run: str, group: str | None) -> float | None:
        """Length of a response of the group; None where it has no siblings, or little is known of the run."""
        of_run, of_group = self._runs.get(run), self._groups.get((run, group or ""))
        if of_run is None or of_group is None or of_run.ended < FEW or of_group.submitted < 2:
            return None
        usual = RUN_WEIGHT * of_run.tokens / of_run.ended
        return (of_group.tokens + usual) / (of_group.ended + RUN_WEIGHT)

    def _of(self, run: str, group: str | None) -> list[Seen]:
        found = (self._runs.get(run), self._groups.get((run, group)) if group is not None else None)
        return [seen for seen in found if seen is not None]


def rest_of(told: float, made: int) -> float:
    """Tokens that a response of `made` so far needs still, if `told` is the mean of its kind; at least 1."""
    return max(1.0, _mean_beyond(math.log(max(1.0, told)) - SPREAD**2 / 2, made) - made)


def _mean_beyond(center: float, made: int) -> float:
    """Mean of the lengths above `made`, where their logarithms lie around `center`."""
    mean = math.exp(center + SPREAD**2 / 2)
    if made < 1:
        return mean
    deviations = (math.log(made) - center) / SPREAD
    if deviations > _FAR:
        return made * (1 + SPREAD / deviations)
    return mean * _above(deviations - SPREAD) / _above(deviations)


def _above(deviations: float) -> float:
    """Share of a normal distribution."""
    return 0.5 * math.erfc(deviations / math.sqrt(2))
