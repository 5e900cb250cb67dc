"""Prints, as NUL-separated NAME=value words, what `run.sh` needs to know about its plan.

Upper-case names are variables to export to every process of the run; lower-case ones are for the script.
"""

import math
import os
import sys

from rl_agent.cli._plan_file import plan_parser, read_plan
from rl_agent.cluster.run_lock import lock_path
from rl_agent.config import Plan
from rl_agent.plan.environment import shared_environment
from rl_agent.plan.runs import groups_dir

SUMMARY = "print the variables of a run as NUL-separated words (for run.sh)"


def main(argv: list[str]) -> int:
    plan = read_plan(plan_parser("environment", SUMMARY).parse_args(argv).plan)
    words = shared_environment(plan.config, os.environ).variables | _facts(plan)
    sys.stdout.write("".join(f"{name}={value}\0" for name, value in words.items()))
    return 0


def _facts(plan: Plan) -> dict[str, str]:
    run_dir = plan.paths.run_dir(plan.run_id)
    return {
        "RL_AGENT_RUN_ID": plan.run_id,
        "RUN_DIR": str(run_dir),
        "attempt": str(plan.attempt),
        "rl_phase": plan.command.rl_phase,
        "rank": str(plan.command.rank),
        "num_nodes": str(plan.command.num_nodes),
        "debug_mode": str(int(plan.command.debug_mode)),
        "resume": str(int(plan.command.resume)),
        "num_gpus": str(plan.hardware.num_gpus),
        "start_attempts": str(plan.config.engine.start_attempts),
        "stop_timeout_s": str(math.ceil(plan.config.engine.stop_timeout_s)),
        "train_timeout_s": str(math.ceil(plan.config.trainer.timeout_s)),
        "logs": str(run_dir / "logs"),
        "groups": str(groups_dir(run_dir)),
        "flags": str(plan.paths.flags / plan.run_id / str(plan.attempt)),
        "timeline": str(plan.paths.timeline),
        "lock": str(lock_path(plan.config.log_path)),
    }
