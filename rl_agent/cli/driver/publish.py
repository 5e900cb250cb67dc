"""Checks a trained model and serves it from now on."""

import argparse
import logging
import os
import time

from rl_agent.cli._options import add_iteration, plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.monitor import metrics
from rl_agent.trainer.llamafactory.inputs import read_summary
from rl_agent.trainer.llamafactory.publish import publish
from rl_agent.trainer.llamafactory.training_log import metrics_of

SUMMARY = "check an iteration's trained model and switch model.pt to it; return its path and weight_version"
EXAMPLE = """example:
  rl-agent publish --plan runs/r1/plan.json --iteration 3
"""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("publish", SUMMARY, EXAMPLE)
    add_iteration(parser)
    return parser


def main(argv: list[str]) -> VerbResult:
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    plan = read_plan(options.plan)
    now = time.time()
    model = publish(plan, options.iteration, os.environ, now)
    paths = plan.paths
    numbers = metrics_of(
        paths.training_dir(options.iteration), read_summary(paths.update_dir(options.iteration))
    )
    head = {"time": now, "iteration": options.iteration, "phase": "update"}
    metrics.append(paths.metrics, head | numbers | {"update/weight_version": model.weight_version})
    return VerbResult({"path": str(model.path), "weight_version": model.weight_version})
