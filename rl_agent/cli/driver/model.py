"""Finds which model a run serves, verifies it on this node, or records that it was served."""

import logging
import time

from rl_agent.cli._options import plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.engine.model import resolve_model
from rl_agent.served_model.verify import verify_served
from rl_agent.served_model.versions import mark_served

SUMMARY = "return the model to serve (path, weight_version); verify it first, or mark it as served"

EXAMPLES = """actions
  (none)  return the model to serve
  verify  the same, if every file is as published; fail (1) if one still differs after --wait-s
  served  record that an engine was ready on it, so that `rollback --if-unserved` keeps it

examples
  rl-agent model --plan runs/r1/plan.json
  rl-agent model verify --plan runs/r1/plan.json --version 7 --wait-s 120
"""


def main(argv: list[str]) -> int | VerbResult:
    parser = plan_parser("model", SUMMARY, EXAMPLES)
    parser.add_argument("action", nargs="?", choices=("verify", "served"), help="see below")
    parser.add_argument(
        "--wait-s",
        type=float,
        default=0.0,
        help="time for a shared file system to show all files (default 0)",
    )
    parser.add_argument("--version", type=int, help="weight version to which model.pt must point")
    options = parser.parse_args(argv)
    plan = read_plan(options.plan)
    if options.action == "served":
        mark_served(plan.paths, time.time())
        return 0
    if options.action == "verify":
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        verify_served(plan.paths, weight_version=options.version, timeout_s=options.wait_s)
    model = resolve_model(plan.config)
    return VerbResult({"path": model.path, "weight_version": model.weight_version})
