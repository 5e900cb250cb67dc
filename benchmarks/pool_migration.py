"""What killing 3 of 6 engines costs a batch: tokens kept and moved, against beginning afresh.

    python benchmarks/pool_migration.py [--requests 384]

Simulated in virtual time (`tests/pool_world.py`); the kill comes at two points of the batch. Overhead is the
time beyond that of the undisturbed batch. Half the engines are left to do the rest of the work in both ways.
"""

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.pool_world import World

ENGINES = 6
KILLED = 3
AFRESH = {"presence_penalty": 0.5}
"""A parameter that cannot be continued: the pool begins such a request again."""


def play(lengths: list[int], kill_at: float | None, *, afresh: bool) -> tuple[float, int]:
    """Seconds until the last response, and tokens sampled in all."""
    world = World(is_checking=False, chunk=4)
    engines = [world.join(f"e{number}", speed=50.0, batch=64, capacity=64) for number in range(ENGINES)]
    world.run(1.0)
    for number, length in enumerate(lengths):
        world.submit(f"r{number}", length, seed=number, params=AFRESH if afresh else {})
    if kill_at is not None:
        for engine in engines[:KILLED]:
            world.at(1.0 + kill_at, engine.crash)
    world.run_until_all_ended(1e6)
    world.assert_all_right()
    return world.now - 1.0, sum(engine.sampled for engine in world.engines.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=384)
    options = parser.parse_args()
    random_ = random.Random(0)
    lengths = [
        max(2, min(8000, round(2000 * random_.lognormvariate(0, 0.6)))) for _ in range(options.requests)
    ]
    whole, needed = play(lengths, None, afresh=False)
    print(f"{options.requests} requests, {needed:,} tokens, undisturbed {whole:.0f} s")
    print("kill at   way         seconds   overhead   tokens made twice")
    for share in (0.25, 0.5):
        kill_at = share * whole
        found = {afresh: play(lengths, kill_at, afresh=afresh) for afresh in (True, False)}
        for afresh, (seconds, sampled) in found.items():
            word = "afresh" if afresh else "moved"
            print(
                f"{kill_at:>6.0f} s  {word:<10}  {seconds:>7.0f}  {seconds - whole:>8.0f} s"
                f"  {sampled - needed:>12,} ({(sampled - needed) / needed:.1%})"
            )
        (slow, _), (quick, _) = found[True], found[False]
        print(f"          overhead of moving against afresh: {(quick - slow) / (slow - whole):+.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
