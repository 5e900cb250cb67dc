"""The verb `rollout` collects the episodes of one iteration and split."""

import argparse
import asyncio
import logging
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from rl_agent.cli._options import add_iteration, plan_parser, read_plan
from rl_agent.cli.driver.await_version import pause_before_look, usable_version

if TYPE_CHECKING:
    from rl_agent.cluster.member.member import Member
    from rl_agent.config.plan import Plan
    from rl_agent.rollout.loop import RolloutLoop
    from rl_agent.rollout.sample import Assignment

SUMMARY = "collect the trajectories of one iteration (train or test)"
EXAMPLE = """examples:
  rl-agent rollout --plan runs/r1/plan.json --iteration 3 --split train
  rl-agent rollout --plan runs/r1/plan.json --iteration 3 --split train --resume
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


def main(argv: list[str], member: "Member | None" = None, rollouts: "RolloutLoop | None" = None) -> int:
    """Prints the rollout's account on stdout, in a run only where an episode failed.

    Returns 130 or 143 after a signal, with what ended on disk.

    Without a `member` it is the only node. Among `rollouts`, the next one may begin before it is ordered.
    """
    options = parser().parse_args(argv)

    from rl_agent.cluster.member.member import Member
    from rl_agent.monitor.progress import StderrHandler
    from rl_agent.rollout.loop import RolloutLoop
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
    with nullcontext(rollouts) if rollouts else RolloutLoop() as loop:
        counts, signal_number = loop.run(assignment, member or Member.alone(assignment.plan))
    if counts is None:
        again = ", --resume goes on" if assignment.plan.is_master else ""  # only rank 0 accepts the flag
        logging.info("rollout interrupted; what ended is on disk%s", again)
        _pass_on(signal_number)
        return 128 + signal_number
    if rollouts is None or not counts.is_all_completed:
        print(counts)
    return 0


async def next_of(assignment: "Assignment") -> "Assignment | None":
    """Wait until the next training rollout may begin while this one's tail runs; None if it may not.

    It may where the trainer streams and has published what that rollout needs. An evaluation beside it is
    still of one version: the trainer publishes an iteration only after its rollout was ordered and ended.
    A trainer that has the only engine's devices in turns decides itself when that generates.
    """
    from rl_agent.trainer.grpo.checkpoint.states import StreamProgress
    from rl_agent.trainer.grpo.launch import progress_file

    plan = assignment.plan
    following = assignment.iteration + (assignment.split == "train")  # an evaluation begins an iteration
    is_last = plan.last_iteration is not None and following > plan.last_iteration
    if is_last or not _may_be_early(plan):
        return None
    began = time.monotonic()
    while True:
        progress = await asyncio.to_thread(StreamProgress.read, progress_file(plan))
        version = usable_version(plan, "rollout", following, progress)
        if version is not None:
            return replace(
                assignment,
                split="train",
                iteration=following,
                min_weight_version=version,
                resume=True,
                resume_must_exist=False,
            )
        await asyncio.sleep(pause_before_look(time.monotonic() - began))


def _may_be_early(plan: "Plan") -> bool:
    config = plan.config
    is_trained = plan.command.rl_phase == "both" and config.is_streaming
    return is_trained and config.grpo.batch.max_staleness > 0 and config.grpo.placement != "colocated"


def _pass_on(signal_number: int) -> None:
    """Tell whoever else in this process wants to know of the signal that ended the rollout."""
    handler = signal.getsignal(signal_number)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(signal_number, None)
