"""Chooses what to train on and writes LLaMA-Factory's inputs."""

import argparse
import logging
import sys

from rl_agent.cli._options import add_iteration, plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.trainer.llamafactory.inputs import read_summary
from rl_agent.trainer.llamafactory.prepare import prepare

SUMMARY = "write an iteration's dataset and train.yaml; outcome=skipped means nothing to train on"
EXAMPLE = """example:
  rl-agent prepare-update --plan runs/r1/plan.json --iteration 3
"""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("prepare-update", SUMMARY, EXAMPLE)
    add_iteration(parser)
    parser.add_argument("--nodes", type=int, default=1, help="nodes that train together (default 1)")
    return parser


def main(argv: list[str]) -> VerbResult:
    options = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    plan = read_plan(options.plan)
    trainer = plan.config.llamafactory
    yaml = prepare(plan, options.iteration, options.nodes)
    if yaml is None:
        recent = trainer.recent_iterations
        print(
            f"nothing to train on: no step of the last {recent} iterations is positive and can be trained on "
            f"(trainer.reward_threshold={trainer.reward_threshold:g}); the model is unchanged",
            file=sys.stderr,
        )
        return VerbResult({"outcome": "skipped"})
    summary = read_summary(yaml.parent)
    if not summary.is_trained:
        print(
            f"training on {summary.samples} of {summary.candidates} positive steps: {summary.new_steps} "
            f"optimizer steps after {summary.steps_before}",
            file=sys.stderr,
        )
    return VerbResult({"outcome": "done", "train_yaml": str(yaml)})
