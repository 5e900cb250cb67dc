"""How long a response will still be, where something is known of it. Pure.

What a submitter says, or siblings that ended show, is not the length but tells about it: lengths are taken to
be lognormal around it. So a response that is already longer than was said is expected to go on the longer,
and short ones that were said to be long do not hold up a plan for long.
"""

import math

SPREAD = 0.6
"""Standard deviation of the logarithm of a length, given what is known."""
_FAR = 5.0
"""Standard deviations beyond which a tail is no more computed, only taken to go on."""


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
