"""Lets workers come and go as spot machines do; `emulate_spot.sh` starts it."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from rl_agent.cli._numbers import above_0, not_negative
from rl_agent.errors import UsageError
from rl_agent.system.flag_parser import FlagParser
from rl_agent.system.terminal import run_script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rl_agent.simulation.spot import Change

SUMMARY = "Start and end pool workers as in a trace of spot machines, or by a fixed schedule."
EXAMPLE = """examples:
  bash scripts/emulate_spot.sh --trace trace.csv --time-scale 0.1 -- --manager http://10.0.0.1:5000 --gpus 0
  bash scripts/emulate_spot.sh --gpus-each 2 -- --manager http://10.0.0.1:5000 --token-file pool.token
  bash scripts/emulate_spot.sh --time-scale 0.01 --until-s 14400 -- --model model.pt

A trace is CSV, `time_s,change[,how]`: `600,+1` or `1200,-1,notice`; without `how` a machine is killed.
Without a trace, a worker starts every 1800 s until there are four; then the oldest is killed and replaced.
The words after `--` are the arguments of every worker (join-pool). With --gpus-each, each has its own GPUs.
"""
STOP_TIMEOUT_S = 40.0


def make_parser() -> FlagParser:
    parser = FlagParser(prog="emulate_spot.sh", description=SUMMARY, epilog=EXAMPLE)
    parser.add_argument("--trace", type=Path, help="CSV file; default: the fixed schedule")
    parser.add_argument("--time-scale", type=above_0, default=1.0, help="0.1: ten times as fast")
    parser.add_argument(
        "--until-s", type=not_negative, help="stop at this time of the trace; default: at its end"
    )
    parser.add_argument(
        "--gpus-each", type=int, metavar="N", help="number of GPUs per worker; each takes the first free ones"
    )
    parser.add_argument("worker", nargs="*", metavar="-- ARGUMENTS", help="arguments of every worker")
    return parser


def main(argv: list[str]) -> int:
    options = make_parser().parse_args(argv)
    if options.gpus_each is not None and options.gpus_each < 1:
        raise UsageError(f"--gpus-each {options.gpus_each}: at least 1")
    if options.gpus_each is not None and any(word.partition("=")[0] == "--gpus" for word in options.worker):
        raise UsageError("--gpus-each gives each worker its --gpus: leave --gpus out after --")

    from rl_agent.simulation.spot import read_trace_file, step_schedule

    changes = iter(read_trace_file(options.trace)) if options.trace is not None else step_schedule()
    until_s = options.until_s if options.until_s is not None else float("inf")
    machines = Machines(options.worker, options.gpus_each)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _replay(itertools.takewhile(lambda c: c.at_s <= until_s, changes), machines, options.time_scale)
        if options.until_s is not None:
            machines.wait_until(until_s * options.time_scale)
    finally:
        machines.stop_all()
    return 0


def _replay(changes: "Iterable[Change]", machines: "Machines", scale: float) -> None:
    for change in changes:
        machines.wait_until(change.at_s * scale)
        if change.is_join:
            machines.join()
        else:
            machines.take_oldest(with_notice=change.with_notice)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class Machines:
    """The workers that run, oldest first; each leads a process group of its own."""

    def __init__(self, arguments: list[str], gpus_each: int | None = None) -> None:
        self._arguments = arguments
        self._gpus_each = gpus_each
        self._place_of: dict[int, int] = {}
        """Process of a worker to the number of its share of the GPUs."""
        self._running: deque[subprocess.Popen[bytes]] = deque()
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._started = time.monotonic()

    def wait_until(self, at_s: float) -> None:
        while (left_s := at_s - (time.monotonic() - self._started)) > 0:
            time.sleep(min(left_s, 1.0))
            self._leaving = [worker for worker in self._leaving if worker.poll() is None]

    def join(self) -> None:
        command = [sys.executable, "-P", "-m", "rl_agent.cli", "join-pool", *self._arguments]
        alive = [worker.pid for worker in (*self._running, *self._leaving) if worker.poll() is None]
        place = free_place({self._place_of[pid] for pid in alive})
        worker = subprocess.Popen(
            [*command, *self._gpus(place)], stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._place_of[worker.pid] = place
        self._running.append(worker)
        self._report(f"+1: worker {worker.pid}; {len(self._running)} run")

    def _gpus(self, place: int) -> list[str]:
        if self._gpus_each is None:
            return []
        first = place * self._gpus_each
        return ["--gpus", ",".join(map(str, range(first, first + self._gpus_each)))]

    def take_oldest(self, *, with_notice: bool) -> None:
        if not self._running:
            self._report("-1: no worker is left to take away")
            return
        worker = self._running.popleft()
        # The engine of a killed worker gets TERM from the kernel; what a machine's end does at once.
        _signal(worker, signal.SIGTERM if with_notice else signal.SIGKILL)
        self._leaving.append(worker)
        word = "notice" if with_notice else "kill"
        self._report(f"-1 ({word}): worker {worker.pid}; {len(self._running)} run")

    def stop_all(self) -> None:
        for worker in self._running:
            _signal(worker, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in [*self._running, *self._leaving]:
            try:
                worker.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(worker, signal.SIGKILL)
                worker.wait()

    def _report(self, words: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._started:7.0f} s] {words}\n")
        sys.stderr.flush()


def free_place(taken: set[int]) -> int:
    """The first number that is not taken."""
    return next(number for number in itertools.count() if number not in taken)


def _signal(worker: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    if worker.poll() is None:
        os.killpg(worker.pid, number)


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]))
