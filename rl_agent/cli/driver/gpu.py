"""Counts GPUs, and waits until their memory is free."""

import sys
import time
from pathlib import Path

from rl_agent.cli._options import read_plan, verb_parser
from rl_agent.cli._result import VerbResult
from rl_agent.engine.gpus import GpuUse, count_gpus, holders, memory_in_use
from rl_agent.errors import DeadlineError, UsageError

SUMMARY = "count the visible GPUs, or wait until their memory is free"
EXAMPLE = """examples:
  rl-agent gpu count
  rl-agent gpu wait --plan runs/r1/plan.json
"""
_POLL_S = 1.0


CLEAR_TIMEOUT_S = 360.0
"""An engine that was killed may need minutes until the driver has given back the memory of all its GPUs."""


def main(argv: list[str]) -> int | VerbResult:
    parser = verb_parser("gpu", SUMMARY, EXAMPLE)
    parser.add_argument("action", choices=("count", "wait"), help="what to do")
    parser.add_argument(
        "--plan", type=Path, help="plan.json of a run, whose engine.memory_clear_mib `wait` needs"
    )
    options = parser.parse_args(argv)
    if options.action == "count":
        return VerbResult({"gpus": count_gpus()})
    if options.plan is None:
        raise UsageError("gpu wait needs --plan")
    engine = read_plan(options.plan).config.engine
    wait_until_clear(engine.memory_clear_mib, CLEAR_TIMEOUT_S)
    return 0


def wait_until_clear(limit_mib: int, timeout_s: float) -> None:
    """Return once every visible GPU uses less than `limit_mib`; raises `DeadlineError` naming the holders."""
    deadline = time.monotonic() + timeout_s
    has_spoken = False
    while busy := [use for use in memory_in_use() if use.used_mib >= limit_mib]:
        if time.monotonic() >= deadline:
            raise DeadlineError(f"after {timeout_s:.0f} s {_describe(busy)}")
        if not has_spoken:
            print(f"waiting up to {timeout_s:.0f} s: {_describe(busy)}", file=sys.stderr)
            has_spoken = True
        time.sleep(_POLL_S)


def _describe(busy: list[GpuUse]) -> str:
    used = ", ".join(f"GPU {use.index} still uses {use.used_mib} MiB" for use in busy)
    return f"{used}; held by {'; '.join(holders()) or 'no process that is visible here'}"
