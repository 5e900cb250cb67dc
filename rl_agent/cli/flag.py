"""Writes the flag of a finished phase, or waits for those of all ranks.

Runs in every phase, so it takes what it needs by argument and imports next to nothing.
"""

import argparse
import time
from pathlib import Path

from rl_agent.cluster.flags import Flag, FlagPlace, create_flag, wait_for_ranks

SUMMARY = "record that this rank has finished a phase, or wait until all ranks have"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rl_agent.cli flag", description=SUMMARY)
    parser.add_argument("action", choices=("create", "wait"))
    parser.add_argument("--folder", type=Path, required=True, help="LOG_PATH/flags/RUN/ATTEMPT")
    parser.add_argument("--iteration", type=int, required=True)
    parser.add_argument("--phase", required=True)
    parser.add_argument("--rank", type=int, default=0, help="the rank that has finished (create)")
    parser.add_argument("--outcome", choices=("done", "skipped", "failed"), default="done")
    parser.add_argument("--ranks", type=int, default=1, help="number of ranks to wait for (wait)")
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="how long to wait")
    return parser


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    place = FlagPlace(options.folder, options.iteration, options.phase)
    if options.action == "create":
        create_flag(place, Flag(options.rank, options.outcome, time.time()))
    else:
        wait_for_ranks(place, options.ranks, timeout_s=options.timeout_s)
    return 0
