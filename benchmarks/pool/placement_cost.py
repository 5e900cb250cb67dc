"""What it costs to place a request by a policy that scores engines, or scores them for each request.

    python benchmarks/pool/placement_cost.py [--engines 64 1000] [--requests 2000]

The scheduler alone: engines with room for all, requests submitted one after the other. Microseconds of a
submission, everything that it leads to included, the best of five.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.flag_parser import FlagParser
from rl_agent.pool.scheduler.policies import LeastWork, PolicyMaker
from rl_agent.testing.pool_world import RULES, World


class ByEngine(LeastWork):
    """Like least_work, without its siblings."""

    response_cost = None


class ByRequest:
    """The same, asked for each request."""

    def score(self, engine, request):  # type: ignore[no-untyped-def]
        return (engine.expected_tokens + engine.waiting) / engine.tokens_per_s


def submission_us(policy: PolicyMaker, engines: int, requests: int) -> float:
    world = World(rules=replace(RULES, policy=policy), is_checking=False)
    for number in range(engines):
        world.join(f"engine-{number}", capacity=requests)
    world.run(1.0)
    began = time.perf_counter()
    for number in range(requests):
        world.submit(f"r{number}", 50, seed=number)
    return (time.perf_counter() - began) / requests * 1e6


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--engines", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    print("engines   score(engine), us   score(engine, request), us")
    for engines in options.engines:
        found = [
            min(submission_us(policy, engines, options.requests) for _ in range(5))
            for policy in (ByEngine, ByRequest)
        ]
        print(f"{engines:>7}   {found[0]:>17.0f}   {found[1]:>26.0f}", flush=True)
    return 0


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
