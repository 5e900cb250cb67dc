"""The verb `wandb-sync` records a run's metrics with wandb until told to stop; run.sh starts it."""

import logging
import os
import signal
import sys
import threading

from rl_agent.cli._options import plan_parser, read_plan

SUMMARY = "record metrics.jsonl with wandb, and keep its curves drawn, until TERM"
EXAMPLE = """example:
  python -m rl_agent.cli wandb-sync --plan runs/r1/plan.json
"""


def main(argv: list[str]) -> int:
    arguments = plan_parser("wandb-sync", SUMMARY, EXAMPLE).parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    os.nice(10)  # the loop comes first

    from rl_agent.monitor.recorder import record_run

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    record_run(read_plan(arguments.plan), stopped)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)  # what wandb does at a process's end waits for its server without a deadline
