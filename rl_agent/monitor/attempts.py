"""Estimates pass@k and avg@k from how often each task was tried and solved, with 95 % confidence intervals.

    pass@k   chance that at least one of k attempts solves a task: the unbiased estimator of Chen et al. 2021,
             https://arxiv.org/abs/2107.03374, averaged over the tasks that have k attempts
    avg@k    share of the attempts that solve a task, averaged over the tasks; k is the number of attempts

A metrics line carries an `Outcomes` of each test set, so that intervals are computed where they are shown:
Wilson's, of as many tasks as would vary as much if each were solved or not, with Student's t for few tasks.
An attempt without a reward is one that does not solve its task.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

Outcomes = Mapping[str, int]
"""Number of tasks by `ATTEMPTS/SUCCESSES`: {"4/0": 10, "4/1": 3}."""

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share of tasks with its confidence interval; None where the sample allows none."""

    name: str
    value: float
    interval: tuple[float, float] | None = None


def outcomes_of(tried: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Count tasks that were tried and solved equally often; `tried` has both numbers of each task."""
    return dict(sorted(Counter(f"{attempts}/{solved}" for attempts, solved in tried.values()).items()))


def pass_at_k(attempts: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one task; needs at least `k` attempts."""
    return 1.0 - math.comb(attempts - solved, k) / math.comb(attempts, k)


def values_of(outcomes: Outcomes) -> dict[str, list[float]]:
    """Return the value of each task by the name of the measure: pass@1, pass@2, pass@4, …, avg@k."""
    tasks = [(tuple(map(int, key.split("/"))), count) for key, count in outcomes.items()]
    most = max((attempts for (attempts, _), _ in tasks), default=0)
    values: dict[str, list[float]] = {}
    for k in sorted({*(2**power for power in range(most.bit_length())), most} - {0}):
        values[f"pass@{k}"] = [
            pass_at_k(attempts, solved, k)
            for (attempts, solved), count in tasks
            if attempts >= k
            for _ in range(count)
        ]
    if most > 1:
        values[f"avg@{most}"] = [
            solved / attempts for (attempts, solved), count in tasks for _ in range(count)
        ]
    return values


def numbers_of(outcomes: Outcomes) -> dict[str, float]:
    """Return the measures without intervals; empty if nothing was tried."""
    return {name: sum(values) / len(values) for name, values in values_of(outcomes).items()}


def estimates_of(outcomes: Outcomes) -> list[Estimate]:
    """Return the measures with their intervals."""
    return [
        Estimate(name, sum(values) / len(values), _interval(values))
        for name, values in values_of(outcomes).items()
    ]


def _interval(values: list[float]) -> tuple[float, float] | None:
    count, mean = len(values), math.fsum(values) / len(values)
    upper = (1 + CONFIDENCE) / 2
    if all(value in (0.0, 1.0) for value in values):
        reach = NormalDist().inv_cdf(upper) ** 2 / count
    elif len(set(values)) < 2:
        return None
    else:
        from scipy.special import stdtrit

        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        tasks = count * max(mean * (1 - mean) / variance, 1.0)
        reach = float(stdtrit(count - 1, upper)) ** 2 / tasks
    middle = mean + reach / 2
    half = math.sqrt(reach * (mean * (1 - mean) + reach / 4))
    low, high = (middle - half) / (1 + reach), (middle + half) / (1 + reach)
    return low if mean > 0 else 0.0, high if mean < 1 else 1.0
