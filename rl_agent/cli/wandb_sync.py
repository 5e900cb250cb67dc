"""`wandb-sync`: record a run's metrics with wandb until told to stop; started by run.sh."""

import argparse
import logging
import signal
import threading
from pathlib import Path

from rl_agent.config import Plan

SUMMARY = "record metrics.jsonl with wandb until TERM"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="wandb-sync", description=SUMMARY)
    parser.add_argument("--plan", type=Path, required=True, help="plan.json of the run")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    from rl_agent.monitor.recorder import record_run

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    record_run(Plan.read(arguments.plan), stopped)
    return 0
