"""How long a long-tailed batch takes over engines of speeds 1, 1, 2, 4, by policy, against the lower bound.

    python benchmarks/pool_balance.py [--requests 256] [--seeds 5]

Simulated in virtual time (`tests/pool_world.py`): an engine gives each of its requests `speed` tokens a
second up to 16 requests, then shares. Lengths are lognormal (median 400, sigma 0.8, at most 4,000) and
unknown to the pool. No schedule is shorter than the lower bound: all tokens over all engines' best
throughput, or the longest response on the fastest engine.
"""

import argparse
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.pool_world import RULES, World

SPEEDS = (1, 1, 2, 4)
TOKENS_PER_S = 30.0
BATCH = 16
POLICIES = ("round_robin", "least_loaded", "least_work")


def lengths_of(seed: int, count: int) -> list[int]:
    random_ = random.Random(seed)
    return [max(2, min(4000, round(400 * random_.lognormvariate(0, 0.8)))) for _ in range(count)]


def lower_bound(lengths: list[int]) -> float:
    fastest = max(SPEEDS) * TOKENS_PER_S
    return max(sum(lengths) / (sum(SPEEDS) * TOKENS_PER_S * BATCH), max(lengths) / fastest)


def makespan(lengths: list[int], policy: str, *, moves: bool, capacity: int) -> tuple[float, int]:
    """Seconds until the last response, and how many requests were moved."""
    rules = replace(RULES, policy=policy, rebalance_gain_s=1.0 if moves else 0.0)
    world = World(rules=rules, is_checking=False, chunk=4)
    for number, speed in enumerate(SPEEDS):
        world.join(f"engine-{number}", speed=speed * TOKENS_PER_S, batch=BATCH, capacity=capacity)
    world.run(1.0)
    for number, length in enumerate(lengths):
        world.submit(f"r{number}", length, seed=number)
    world.run_until_all_ended(1e6)
    world.assert_all_right()
    return world.now - 1.0, world.state.account.moves


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    batches = [lengths_of(seed, options.requests) for seed in range(options.seeds)]
    bounds = [lower_bound(lengths) for lengths in batches]
    print(f"{options.requests} requests, {options.seeds} seeds, bound {statistics.mean(bounds):.1f} s (mean)")
    print("policy        moves  capacity  makespan / bound (mean, worst)  moved")
    for policy in POLICIES:
        for moves, capacity in ((False, 64), (True, 64), (True, BATCH)):
            found = [makespan(lengths, policy, moves=moves, capacity=capacity) for lengths in batches]
            ratios = [seconds / bound for (seconds, _), bound in zip(found, bounds, strict=True)]
            moved = statistics.mean(count for _, count in found)
            word = "yes" if moves else "no"
            print(
                f"{policy:<13} {word:<6} {capacity:<9} {statistics.mean(ratios):.2f}, {max(ratios):.2f}"
                f"{'':<22} {moved:.0f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
