"""The verb `wandb-sync` records a run's metrics with wandb until told to stop; run.sh starts it."""

import argparse
import logging
import os
import signal
import sys
import threading
from functools import partial
from itertools import islice
from typing import Any

from rl_agent.cli._options import plan_parser, read_plan
from rl_agent.paths import RunPaths

SUMMARY = "record metrics.jsonl with wandb and redraw its curves, until TERM"
EXAMPLE = """example:
  rl-agent wandb-sync --plan runs/r1/plan.json
"""


COLUMNS = ("episode", "iteration", "status", "reward", "prompt", "last_response", "answer", "failure")
MAX_SAMPLES = 16
"""Episodes in the table of an iteration."""
MAX_CHARACTERS = 4000


def parser() -> argparse.ArgumentParser:
    return plan_parser("wandb-sync", SUMMARY, EXAMPLE)


def main(argv: list[str]) -> int:
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    os.nice(10)  # the loop comes first

    from rl_agent.monitor.recorder import record_run

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    plan = read_plan(arguments.plan)
    record_run(plan, stopped, partial(samples_of, plan.paths))
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)  # what wandb does at a process's end waits for its server without a deadline


def samples_of(paths: RunPaths, record: dict[str, Any]) -> dict[str, list[dict[str, object]]]:
    """Return the first episodes of the rollout or evaluation that a metrics record is about."""
    from rl_agent.rollout.trajectories.browse import Filter, find, flat

    split, iteration = record.get("split"), record.get("iteration")
    if split not in ("train", "test") or not isinstance(iteration, int):
        return {}
    episodes = islice(find(paths, Filter(split=split, iterations=frozenset({iteration}))), MAX_SAMPLES)
    rows = [{column: _short(row[column]) for column in COLUMNS} for row in map(flat, episodes)]
    return {f"{split}/samples": rows} if rows else {}


def _short(value: object) -> object:
    return value[:MAX_CHARACTERS] if isinstance(value, str) else value
