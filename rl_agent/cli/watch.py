"""Waits for a process of this node, and gives up as soon as the run has lost what the process needs."""

import os
import select
import sys
import time

from rl_agent.cli._plan_file import plan_parser, read_plan
from rl_agent.cluster.member import Member
from rl_agent.errors import EXIT_DEADLINE, EXIT_RETRY_LATER

SUMMARY = "wait until a process ends (0), its deadline passes (124), or a node it needs is lost (75)"
EXAMPLE = """examples:
  python -m rl_agent.cli watch --plan runs/r1/plan.json --pid 4711 --timeout-s 3600 \\
      --iteration 3 --phase train-8
"""
_LOOK_S = 0.5


def main(argv: list[str], member: Member | None = None) -> int:
    parser = plan_parser("watch", SUMMARY, EXAMPLE)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    parser.add_argument("--iteration", type=int, required=True)
    parser.add_argument("--phase", required=True, help="the phase that the process is this node's part of")
    options = parser.parse_args(argv)
    if member is None:
        with Member.alone(read_plan(options.plan)) as member:
            return _watch(options.pid, options.timeout_s, options.iteration, options.phase, member)
    return _watch(options.pid, options.timeout_s, options.iteration, options.phase, member)


def _watch(pid: int, timeout_s: float, iteration: int, phase: str, member: Member) -> int:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0
    try:
        deadline = time.monotonic() + timeout_s
        while not select.select([process], [], [], _LOOK_S)[0]:
            if time.monotonic() >= deadline:
                return EXIT_DEADLINE
            decision = member.decision(iteration, phase)
            if decision is not None:  # before this node has finished: another one is lost
                print(
                    f"iteration {iteration}: {phase} cannot end: {', '.join(decision.lost)}", file=sys.stderr
                )
                return EXIT_RETRY_LATER
            member.check()
    finally:
        os.close(process)
    return 0
