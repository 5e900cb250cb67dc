"""Measures the pool's decisions as it grows: events per second and memory, to 2,000 engines and 50,000 open.

    python benchmarks/pool/scale.py [--engines 20 200 2000] [--requests 500 5000 50000]

The machine alone, without network: the simulated world (`tests.support.pool_world`) runs in virtual time and
its own cost is left out of the clock. Every chunk of tokens, beat, and end is an event.
"""

import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.pool.scheduler.machine import step
from rl_agent.simulation import virtual_pool
from rl_agent.system.flag_parser import FlagParser
from tests.support.pool_world import World

SPENT = 0.0


def timed_step(state, event, now):
    global SPENT
    start = time.perf_counter()
    commands = step(state, event, now)
    SPENT += time.perf_counter() - start
    return commands


def measure(engines: int, requests: int) -> str:
    global SPENT
    world = World(is_checking=False, chunk=8)
    for number in range(engines):
        world.join(f"engine-{number}", capacity=32, batch=32)
    world.run(1.0)
    SPENT, world.decisions = 0.0, 0
    for number in range(requests):
        world.submit(f"r{number}", 64 + number % 64, seed=number, group=f"g{number // 8}")
    submit_s, submitted = SPENT, world.decisions
    SPENT, world.decisions = 0.0, 0
    world.run_until_all_ended(1e6)
    events_per_s = world.decisions / SPENT
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{engines:>7}  {requests:>8}  {submitted / submit_s:>12,.0f}  {world.decisions:>9,}"
        f"  {events_per_s:>12,.0f}  {mib:>8,.0f}"
    )


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--engines", type=int, nargs="+", default=[20, 200, 2000])
    parser.add_argument("--requests", type=int, nargs="+", default=[500, 5000, 50_000])
    options = parser.parse_args()
    virtual_pool.step = timed_step
    print("engines  requests  submits / s   events     events / s    peak MiB (process, growing)")
    for engines, requests in zip(options.engines, options.requests, strict=True):
        print(measure(engines, requests), flush=True)
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
