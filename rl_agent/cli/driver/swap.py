"""Brings the newest model into the running engine, where the configuration says so."""

import argparse
import logging
import os
import sys
import time

from rl_agent.cli._options import add_iteration, plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.config.plan import Plan
from rl_agent.engine.server import Answer, probe
from rl_agent.errors import StoreError, WeightsError
from rl_agent.monitor import metrics
from rl_agent.served_model.verify import verify_served

SUMMARY = "load the newest model into the running engine (weights=inplace); return what it then serves"
EXAMPLE = """answer=
  wanted       the engine serves the newest model
  old-version  it does not, and must be restarted; the line on stderr says why

examples:
  rl-agent swap --plan runs/r1/plan.json --iteration 3
"""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("swap", SUMMARY, EXAMPLE)
    add_iteration(parser)
    parser.add_argument("--version", type=int, help="weight version to which model.pt must point")
    return parser


def main(argv: list[str]) -> VerbResult:
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    plan = read_plan(options.plan)
    if plan.config.weights.is_inplace:
        _swap(plan, options.iteration, options.version)
        return VerbResult({"answer": probe(plan.config, os.environ).answer.value})
    return VerbResult({"answer": Answer.OLD_VERSION.value})


def _swap(plan: Plan, iteration: int, weight_version: int | None) -> None:
    from rl_agent.served_model.swap import swap

    if not plan.is_master:
        verify_served(plan.paths, weight_version=weight_version, timeout_s=plan.config.cluster.lease_s)
    held = probe(plan.config, os.environ).weight_version
    if held is None or held < 0:
        print("the engine has no complete version and must be restarted", file=sys.stderr)
        return
    try:
        done = swap(plan, held)
    except (WeightsError, StoreError, OSError) as error:
        print(f"the engine did not take the new weights: {error}", file=sys.stderr)
        return
    print(
        f"the engine went from weight version {held} to {done.weight_version}: {done.snapshot_s:.1f} s beside"
        f" it, {done.pause_s:.2f} s of pause",
        file=sys.stderr,
    )
    if plan.is_master:
        head = {"time": time.time(), "iteration": iteration, "phase": "update"}
        metrics.append(plan.paths.metrics, head | done.numbers())
