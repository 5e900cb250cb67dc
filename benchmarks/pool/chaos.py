"""A thousand runs in which everything goes wrong: what happened, and whether any request was lost or doubled.

    python benchmarks/pool/chaos.py [--seeds 1000] [--first 0] [--jobs 2] [--out chaos.jsonl]

Each run (`tests.support.pool_chaos`) is a real manager over HTTP with simulated engines and 40 requests, its
faults drawn from its seed: engines killed, stopped, vanished with connections half open, drained, joined;
streams cut, garbled, truncated, repeated, hung, in pieces over a slow link; HTTP 500 and 429; answers to the
consumer lost; the manager restarted. After it each request must have ended once, in order, with exactly its
tokens. A seed that fails is printed and draws the same faults again. A run hangs if nothing in it comes any
nearer to its end for 600 turns of its loop, however long those take. With `--out` each run is written down as
it ends, and those of an earlier call are counted and not made again.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.system.flag_parser import FlagParser
from tests.support.pool_chaos import REQUESTS, Chaos

Result = tuple[int, Counter[str], str]
"""Seed, what happened, and what was wrong."""


def play(seed: int) -> Result:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(seed, str(Path(folder, "journal.jsonl")))
        try:
            asyncio.run(chaos.run())
            chaos.check()
        except BaseException:
            return seed, chaos.happened, traceback.format_exc(limit=-3)[-4000:]
        counts = Counter(sample["failure"] for sample in chaos.seen)
        chaos.happened["requests completed"] = counts[""]
        chaos.happened["requests failed with a reason"] = len(chaos.seen) - counts[""]
        return seed, chaos.happened, ""


def earlier(path: Path | None) -> list[Result]:
    if path is None or not path.exists():
        return []
    return [(seed, Counter(numbers), problem) for seed, numbers, problem in map(json.loads, path.open())]


def played(options: argparse.Namespace) -> Iterator[Result]:
    """Those of an earlier call first, then the others as they end."""
    seeds = set(range(options.first, options.first + options.seeds))
    known = [result for result in earlier(options.out) if result[0] in seeds]
    yield from known
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(play, seed) for seed in sorted(seeds - {seed for seed, _, _ in known})]
        for job in as_completed(jobs):
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(job.result()) + "\n")
            yield job.result()


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file of the runs made so far: this call goes on from it")
    options = parser.parse_args()
    happened: Counter[str] = Counter()
    wrong: list[int] = []
    start = time.monotonic()
    for count, (seed, numbers, problem) in enumerate(played(options), start=1):
        happened += numbers
        if problem:
            wrong.append(seed)
            print(f"seed {seed}:\n{problem}", flush=True)
        if count % 50 == 0:
            done = f"{count} of {options.seeds} runs, {len(wrong)} wrong"
            print(f"{done}, {time.monotonic() - start:.0f} s", flush=True)
    for name, count in sorted(happened.items()):
        print(f"{name:<32} {count:>9,}")
    took_s = time.monotonic() - start
    print(f"{options.seeds} runs of {REQUESTS} requests in {took_s:.0f} s, {len(wrong)} wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
