"""Histories in which everything about a fleet goes wrong, in virtual time: limits, leaks, and strangers.

    python benchmarks/pool/scale_chaos.py [--seeds 300] [--first 0] [--jobs 2]

Each history (`tests.support.scale_chaos`) is two hours of the real reconciler with a pretended provider. For
the first hour its faults are drawn from its seed: starts and stops that fail, hang, lie, are forgotten, come
late, twice or for another machine; lists that fail, hang, are old or leave machines out; machines taken away;
manager and reconciler killed. At every start the limits must hold; in the end what is wanted is there, then
nothing.
"""

import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.system.flag_parser import FlagParser
from tests.support.scale_chaos import RULES, ScaleWorld
from tests.support.virtual_time import run_virtually


def play(seed: int) -> tuple[int, Counter[str], dict[str, float], str]:
    """Return the seed, what happened, the most there ever was, and what was wrong."""
    world = ScaleWorld(seed)
    try:
        run_virtually(world.run())
    except Exception:
        return seed, world.happened, world.most, traceback.format_exc(limit=-3)[-4000:]
    world.happened["machines started"] += len(world.requested)
    return seed, world.happened, world.most, ""


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    began, happened, wrong = time.monotonic(), Counter(), []
    most = {"engines": 0.0, "dollars": 0.0}
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for seed, counts, reached, problem in pool.map(
            play, range(options.first, options.first + options.seeds), chunksize=5
        ):
            happened += counts
            most = {name: max(value, reached[name]) for name, value in most.items()}
            if problem:
                wrong.append(seed)
                print(f"seed {seed}:\n{problem}", flush=True)
    for name, count in sorted(happened.items()):
        print(f"{name.replace('_', ' '):<26} {count:>8,}")
    print(
        f"most at once: {most['engines']:g} machines of {RULES.max_engines}, ${most['dollars']:g} an hour of"
        f" ${RULES.max_price_per_hour:g}"
    )
    print(f"{options.seeds} histories in {time.monotonic() - began:.0f} s, {len(wrong)} wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
