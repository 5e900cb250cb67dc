"""A thousand runs in which everything goes wrong: what happened, and whether any request was lost or doubled.

    python benchmarks/pool_chaos.py [--seeds 1000] [--first 0] [--jobs 2]

Each run (`tests/pool_chaos.py`) is a real manager over HTTP with simulated engines and 40 requests, its
faults drawn from its seed: engines killed, stopped, vanished with connections half open, drained, joined;
streams cut, garbled, truncated, repeated, hung, in pieces over a slow link; HTTP 500 and 429; answers to the
consumer lost; the manager restarted. After it each request must have ended once, in order, with exactly its
tokens. A seed that fails is printed and draws the same faults again.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.pool_chaos import REQUESTS, Chaos


def play(seed: int) -> tuple[int, Counter[str], str]:
    """Seed, what happened, and what was wrong."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(seed, str(Path(folder, "journal.jsonl")))
        try:
            asyncio.run(chaos.run())
            chaos.check()
        except BaseException:
            return seed, chaos.happened, traceback.format_exc(limit=-3)
        counts = Counter(sample["failure"] for sample in chaos.seen)
        chaos.happened["requests completed"] = counts[""]
        chaos.happened["requests failed with a reason"] = len(chaos.seen) - counts[""]
        return seed, chaos.happened, ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    happened: Counter[str] = Counter()
    wrong: list[int] = []
    start = time.monotonic()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for seed, found, problem in pool.map(play, seeds):
            happened += found
            if (seed - options.first + 1) % 50 == 0:
                done = f"{seed - options.first + 1} of {options.seeds} runs, {len(wrong)} wrong"
                print(f"{done}, {time.monotonic() - start:.0f} s", flush=True)
            if problem:
                wrong.append(seed)
                print(f"seed {seed}:\n{problem}", flush=True)
    for name, count in sorted(happened.items()):
        print(f"{name:<32} {count:>9,}")
    took_s = time.monotonic() - start
    print(f"{options.seeds} runs of {REQUESTS} requests in {took_s:.0f} s, {len(wrong)} wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
