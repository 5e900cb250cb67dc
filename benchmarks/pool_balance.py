"""How long a long-tailed batch takes over engines of speeds 1, 1, 2, 4, by policy, against the lower bound.

    python benchmarks/pool_balance.py [--requests 256 1024] [--seeds 5]

Simulated in virtual time (`tests/pool_world.py`): an engine gives each of its requests `speed` tokens a
second up to 16 requests, then shares. Lengths are lognormal (median 400, sigma 0.8, at most 4,000). No
schedule is shorter than the lower bound: all tokens over all engines' best throughput, or the longest
response on the fastest engine. It knows the lengths. `equal shares` does not: all requests from the start,
each at the same rate, moved at no cost, as fast as the engines can. What is ahead of it was lucky or told.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.pool_world import RULES, World

SPEEDS = (1, 1, 2, 4)
TOKENS_PER_S = 30.0
BATCH = 16
Ends = tuple[float, int]
"""Seconds until the last response, and how many requests were moved."""


def lengths_of(seed: int, count: int) -> list[int]:
    random_ = random.Random(seed)
    return [max(2, min(4000, round(400 * random_.lognormvariate(0, 0.8)))) for _ in range(count)]


def lower_bound(lengths: list[int]) -> float:
    fastest = max(SPEEDS) * TOKENS_PER_S
    return max(sum(lengths) / (sum(SPEEDS) * TOKENS_PER_S * BATCH), max(lengths) / fastest)


def equal_shares(lengths: list[int]) -> Ends:
    """Every request at the same rate at every moment: the fastest places are shared among those left."""
    places = [speed * TOKENS_PER_S for speed in sorted(SPEEDS, reverse=True) for _ in range(BATCH)]
    seconds, before = 0.0, 0
    for ended, length in enumerate(sorted(lengths)):
        left = len(lengths) - ended
        seconds += (length - before) * left / sum(places[:left])
        before = length
    return seconds, 0


def play(lengths: list[int], *, policy: str, moves: bool, capacity: int, error: float | None) -> Ends:
    """`error`: sigma of the lognormal factor by which the given lengths are wrong; None: none are given."""
    rules = replace(RULES, policy=policy, rebalance_gain_s=1.0 if moves else 0.0)
    world = World(rules=rules, is_checking=False, chunk=4)
    for number, speed in enumerate(SPEEDS):
        world.join(f"engine-{number}", speed=speed * TOKENS_PER_S, batch=BATCH, capacity=capacity)
    world.run(1.0)
    if error is None:
        for number, length in enumerate(lengths):
            world.submit(f"r{number}", length, seed=number)
    else:
        random_ = random.Random(len(lengths))
        told = [max(1, round(length * random_.lognormvariate(0, error))) for length in lengths]
        for number in sorted(range(len(lengths)), key=lambda number: -told[number]):
            world.submit(f"r{number}", lengths[number], seed=number, expected_tokens=told[number])
    world.run_until_all_ended(1e6)
    world.assert_all_right()
    return world.now - 1.0, world.state.account.moves


def ways() -> dict[str, Callable[[list[int]], Ends]]:
    found: dict[str, Callable[[list[int]], Ends]] = {}
    for policy in ("round_robin", "least_loaded", "least_work"):
        found[f"{policy}, no moves"] = partial(
            play, policy=policy, moves=False, capacity=4 * BATCH, error=None
        )
    moving = partial(play, policy="least_work", moves=True)
    found["moves, 4 batches at an engine"] = partial(moving, capacity=4 * BATCH, error=None)
    found["moves, 1 batch at an engine"] = partial(moving, capacity=BATCH, error=None)
    found["equal shares, ideal"] = equal_shares
    for error in (0.6, 0.3, 0.0):
        found[f"moves, lengths told +-{error:.0%}"] = partial(moving, capacity=BATCH, error=error)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for count in options.requests:
        batches = [lengths_of(seed, count) for seed in range(options.seeds)]
        bounds = [lower_bound(lengths) for lengths in batches]
        print(f"{count} requests, {options.seeds} seeds, lower bound {statistics.mean(bounds):.1f} s (mean)")
        print("way                              makespan / bound (mean, worst)   moved")
        for name, way in ways().items():
            ends = [way(lengths) for lengths in batches]
            ratios = [seconds / bound for (seconds, _), bound in zip(ends, bounds, strict=True)]
            moved = statistics.mean(count for _, count in ends)
            print(
                f"{name:<32} {statistics.mean(ratios):>8.2f} {max(ratios):>8.2f} {moved:>20.0f}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
