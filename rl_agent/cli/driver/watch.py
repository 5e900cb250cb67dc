"""Waits for the training on this node, and gives up as soon as the run has lost what it needs.

Meanwhile the master says how far the training is.
"""

import os
import select
import sys
import time

from rl_agent.cli._options import add_iteration, member_or_alone, plan_parser, read_plan
from rl_agent.cli.driver._wait_lines import WaitLines
from rl_agent.cluster.member.member import Member
from rl_agent.errors import EXIT_DEADLINE, EXIT_RETRY_LATER
from rl_agent.trainer.llamafactory.training_log import TrainingProgress

SUMMARY = "wait until a process ends (0), its deadline passes (124), or a node it needs is lost (75)"
EXAMPLE = """examples:
  rl-agent watch --plan runs/r1/plan.json --pid 4711 --timeout-s 3600 \\
      --iteration 3 --phase train-8
"""
_LOOK_S = 0.5


def main(argv: list[str], member: Member | None = None) -> int:
    parser = plan_parser("watch", SUMMARY, EXAMPLE)
    parser.add_argument("--pid", type=int, required=True, help="the process")
    parser.add_argument("--timeout-s", type=float, required=True, help="time limit of the process")
    add_iteration(parser)
    parser.add_argument("--phase", required=True, help="phase to which the process belongs")
    options = parser.parse_args(argv)
    plan = read_plan(options.plan)
    progress = TrainingProgress(plan.paths.training_dir(options.iteration), options.iteration)
    with member_or_alone(member, options.plan) as member:
        return _watch(options.pid, options.timeout_s, options.iteration, options.phase, progress, member)


def _watch(
    pid: int, timeout_s: float, iteration: int, phase: str, progress: TrainingProgress, member: Member
) -> int:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        began = time.monotonic()
        with WaitLines() as lines:
            while not select.select([process], [], [], _LOOK_S)[0]:
                waited_s = time.monotonic() - began
                if waited_s >= timeout_s:
                    return EXIT_DEADLINE
                line = progress.line(waited_s, has_bar=lines.is_shown) if member.is_master else ""
                if line:
                    member.set_doing(progress.line(waited_s))
                waiting = f"update {iteration}: {_waiting(member)}  {waited_s:.0f} s"
                lines.report(waited_s, line or waiting)
                decision = member.decision(iteration, phase)
                if decision is not None:  # before this node has finished: another one is lost
                    lost = ", ".join(decision.lost)
                    print(f"iteration {iteration}: {phase} cannot end: {lost}", file=sys.stderr)
                    return EXIT_RETRY_LATER
                member.check()
    finally:
        os.close(process)
    return 0


def _waiting(member: Member) -> str:
    """Describe a training of which this node sees no step; only the master has its log."""
    return "waiting for the first optimizer steps" if member.is_master else "training; rank 0 shows the steps"
