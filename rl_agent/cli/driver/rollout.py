"""The verb `rollout` collects the episodes of one iteration and split."""

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from rl_agent.cli._garbage import rare_garbage_collection
from rl_agent.cli._options import add_iteration, plan_parser, read_plan

if TYPE_CHECKING:
    from rl_agent.cluster.member.member import Member

SUMMARY = "collect the trajectories of one iteration (train or test)"
EXAMPLE = """examples:
  python -m rl_agent.cli rollout --plan runs/r1/plan.json --iteration 3 --split train
  python -m rl_agent.cli rollout --plan runs/r1/plan.json --iteration 3 --split train --resume
"""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("rollout", SUMMARY)
    parser.epilog = EXAMPLE
    add_iteration(parser)
    parser.add_argument(
        "--split", choices=("train", "test"), required=True, help="task file whose tasks are attempted"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        choices=("required", "if-begun"),
        const="required",
        help="continue what the run has begun; if nothing was begun: an error (required) or a fresh start",
    )
    parser.add_argument(
        "--min-weight-version", type=int, default=0, help="minimum weight version of an engine of a pool"
    )
    return parser


def main(argv: list[str], member: "Member | None" = None) -> int:
    """Prints the rollout's account on stdout; returns 130 or 143 after a signal, with what ended on disk.

    Without a `member` it is the only node. May be called again and again in one process.
    """
    options = parser().parse_args(argv)

    from rl_agent.cluster.member.member import Member
    from rl_agent.monitor.progress import StderrHandler
    from rl_agent.rollout.run import run_rollout
    from rl_agent.rollout.sample import Assignment

    form = "%(asctime)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%H:%M:%S", handlers=[StderrHandler()])
    assignment = Assignment(
        read_plan(options.plan),
        options.split,
        options.iteration,
        resume=options.resume is not None,
        resume_must_exist=options.resume == "required",
        min_weight_version=options.min_weight_version,
    )
    account, signal_number = run_until_signalled(
        run_rollout(assignment, member or Member.alone(assignment.plan)),
        threads=assignment.config.env_config.server_size,
    )
    if account is None:
        again = ", --resume goes on" if assignment.plan.is_master else ""  # only rank 0 accepts the flag
        logging.info("rollout interrupted; what ended is on disk%s", again)
        _pass_on(signal_number)
        return 128 + signal_number
    print(account)
    return 0


def _pass_on(signal_number: int) -> None:
    """Tell whoever else in this process wants to know of the signal that ended the rollout."""
    handler = signal.getsignal(signal_number)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(signal_number, None)


def run_until_signalled(rollout: Coroutine[Any, Any, str], *, threads: int) -> tuple[str | None, int]:
    """Return the result, or None and the number of the signal (INT, TERM) that cancelled it.

    A second Ctrl+C ends the process at once; a second TERM does not, as run.sh and Slurm may each send one.
    Afterwards the process is as it was.
    """
    import uvloop

    from rl_agent.system.worker_threads import WorkerThreads

    received: list[int] = []

    async def run() -> str | None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(WorkerThreads(threads))
        job = asyncio.current_task()
        assert job is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _cancel, job, number, received)
        try:
            return await rollout
        except asyncio.CancelledError:
            if received:
                return None
            raise

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with rare_garbage_collection(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            account = runner.run(run())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return account, received[0] if received else 0


def _cancel(job: asyncio.Task[Any], number: int, received: list[int]) -> None:
    if not received:
        received.append(number)
        job.cancel()
    elif number == signal.SIGINT:
        os._exit(128 + received[0])
