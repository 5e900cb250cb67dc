"""Becomes the vLLM server of a run."""

import argparse
import logging
import os
import shlex
import sys

from rl_agent.cli._options import plan_parser, read_plan
from rl_agent.engine.model import resolve_model
from rl_agent.engine.server import server_argv, server_environment
from rl_agent.served_model.verify import verify_model

SUMMARY = "serve the run's newest model with vLLM (replaces this process)"
EXAMPLE = """example:
  rl-agent serve --plan runs/r1/plan.json
"""


def parser() -> argparse.ArgumentParser:
    return plan_parser("serve", SUMMARY, EXAMPLE)


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    plan = read_plan(parser().parse_args(argv).plan)
    verify_model(resolve_model(plan.config).path)
    command = server_argv(plan)
    logging.info("%s", shlex.join(command))
    sys.stderr.flush()
    os.execvpe(command[0], command, server_environment(plan.config, os.environ))  # noqa: S606
