"""How long a long-tailed batch takes over engines of speeds 1, 1, 2, 4, by policy, against the lower bound.

    python benchmarks/pool/balance.py [--requests 256 1024] [--seeds 5]

Simulated in virtual time (`testing.pool_world`): an engine gives each of its requests `speed` tokens a
second up to 16 requests, then shares. Lengths are lognormal (median 400, sigma 0.8, at most 4,000): those of
the 8 siblings of a task around one of its own with sigma 0.4, tasks among each other with sigma 0.69. No
schedule is shorter than the lower bound: all tokens over all engines' best throughput, or the longest
response on the fastest engine. It knows the lengths. `equal shares` does not: all requests from the start,
each at the same rate, moved at no cost, as fast as the engines can. What is ahead of it was lucky, or told,
or learned: `by siblings` the pool learns from the siblings in the batch itself, `no groups` it knows of none;
`by earlier episodes` is what the collector says, the mean of what others of the task took, 8 of them or 1.
"""

import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.flag_parser import FlagParser
from rl_agent.pool.scheduler.policies import BUILT_IN
from rl_agent.testing.pool_world import RULES, World

SPEEDS = (1, 1, 2, 4)
SIBLINGS = 8
AMONG_SIGMA, WITHIN_SIGMA = 0.69, 0.4
TOKENS_PER_S = 30.0
BATCH = 16
Ends = tuple[float, int]
"""Seconds until the last response, and how many requests were moved."""


@dataclass(frozen=True, slots=True)
class Batch:
    lengths: list[int]
    earlier: list[list[int]]
    """What earlier episodes of each one's task took."""


def batch_of(seed: int, count: int) -> Batch:
    random_ = random.Random(seed)
    lengths, earlier = [], []
    for _ in range(count // SIBLINGS):
        median = 400 * random_.lognormvariate(0, AMONG_SIGMA)
        drawn = [
            max(2, min(4000, round(median * random_.lognormvariate(0, WITHIN_SIGMA))))
            for _ in range(2 * SIBLINGS)
        ]
        lengths += drawn[:SIBLINGS]
        earlier += [drawn[SIBLINGS:]] * SIBLINGS
    return Batch(lengths, earlier)


def lower_bound(lengths: list[int]) -> float:
    fastest = max(SPEEDS) * TOKENS_PER_S
    return max(sum(lengths) / (sum(SPEEDS) * TOKENS_PER_S * BATCH), max(lengths) / fastest)


def equal_shares(batch: Batch) -> Ends:
    """Every request at the same rate at every moment: the fastest places are shared among those left."""
    places = [speed * TOKENS_PER_S for speed in sorted(SPEEDS, reverse=True) for _ in range(BATCH)]
    seconds, before = 0.0, 0
    for ended, length in enumerate(sorted(batch.lengths)):
        left = len(batch.lengths) - ended
        seconds += (length - before) * left / sum(places[:left])
        before = length
    return seconds, 0


Tell = Callable[[Batch], list[float]]
"""What the submitter says of each length."""


def wrong_by(sigma: float) -> Tell:
    """The lengths, wrong by a lognormal factor."""

    def tell(batch: Batch) -> list[float]:
        random_ = random.Random(len(batch.lengths))
        return [length * random_.lognormvariate(0, sigma) for length in batch.lengths]

    return tell


def by_earlier(count: int) -> Tell:
    return lambda batch: [statistics.mean(lengths[:count]) for lengths in batch.earlier]


def play(
    batch: Batch,
    *,
    policy: str,
    moves: bool,
    capacity: int,
    tell: Tell | None = None,
    names_groups: bool = True,
) -> Ends:
    rules = replace(RULES, policy=BUILT_IN[policy], rebalance_gain_s=1.0 if moves else 0.0)
    world = World(rules=rules, is_checking=False, chunk=4)
    for number, speed in enumerate(SPEEDS):
        world.join(f"engine-{number}", speed=speed * TOKENS_PER_S, batch=BATCH, capacity=capacity)
    world.run(1.0)
    lengths = batch.lengths
    if tell is None:
        for number, length in enumerate(lengths):
            group = str(number // SIBLINGS) if names_groups else None
            world.submit(f"r{number}", length, seed=number, group=group)
    else:
        told = [max(1, round(length)) for length in tell(batch)]
        for number in sorted(range(len(lengths)), key=lambda number: -told[number]):
            world.submit(f"r{number}", lengths[number], seed=number, expected_tokens=told[number])
    world.run_until_all_ended(1e6)
    world.assert_all_right()
    return world.now - 1.0, world.state.account.moves


def ways() -> dict[str, Callable[[Batch], Ends]]:
    found: dict[str, Callable[[Batch], Ends]] = {}
    for policy in ("round_robin", "least_loaded", "least_work"):
        found[f"{policy}, no moves"] = partial(play, policy=policy, moves=False, capacity=4 * BATCH)
    moving = partial(play, policy="least_work", moves=True)
    for batches in (4, 1):
        at_each = f"{batches} x {BATCH} at each"
        alone = partial(moving, capacity=batches * BATCH, names_groups=False)
        found[f"moves, {at_each}, no groups"] = alone
        found[f"moves, {at_each}, by siblings"] = partial(moving, capacity=batches * BATCH)
    found["equal shares, ideal"] = equal_shares
    for count in (1, 8):
        tell = by_earlier(count)
        found[f"moves, estimated from {count} earlier"] = partial(moving, capacity=BATCH, tell=tell)
    for sigma in (0.6, 0.3, 0.0):
        found[f"moves, lengths known, error of sigma {sigma}"] = partial(
            moving, capacity=BATCH, tell=wrong_by(sigma)
        )
    return found


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for count in options.requests:
        batches = [batch_of(seed, count) for seed in range(options.seeds)]
        bounds = [lower_bound(batch.lengths) for batch in batches]
        print(f"{count} requests, {options.seeds} seeds, lower bound {statistics.mean(bounds):.1f} s (mean)")
        print("way                                makespan / bound (mean, worst)   moved")
        for name, way in ways().items():
            ends = [way(batch) for batch in batches]
            ratios = [seconds / bound for (seconds, _), bound in zip(ends, bounds, strict=True)]
            moved = statistics.mean(count for _, count in ends)
            print(
                f"{name:<34} {statistics.mean(ratios):>8.2f} {max(ratios):>8.2f} {moved:>20.0f}", flush=True
            )
    return 0


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
