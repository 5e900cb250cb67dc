"""Waits for the streaming trainer, where a phase needs what it has not published yet."""

import os
import select
import sys
import time

from rl_agent.cli._plan_file import plan_parser, read_plan
from rl_agent.cluster.member import Member
from rl_agent.cluster.schedule import needed_iteration, oldest_version
from rl_agent.config import Plan
from rl_agent.errors import EXIT_DEADLINE, EXIT_RETRY_LATER

SUMMARY = "wait until the trainer has published what a phase needs (0), the deadline (124), its death (75)"
EXAMPLE = """examples:
  python -m rl_agent.cli await-version --plan runs/r1/plan.json --iteration 3 --phase rollout --pid 4711
"""
_LOOK_S = 0.1


def main(argv: list[str], member: Member | None = None) -> int:
    """Prints the oldest weight version that the phase may use."""
    parser = plan_parser("await-version", SUMMARY, EXAMPLE)
    parser.add_argument("--iteration", type=int, required=True)
    parser.add_argument("--phase", choices=("evaluate", "rollout", "update"), required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the trainer")
    options = parser.parse_args(argv)
    plan = read_plan(options.plan)
    if member is None:
        with Member.alone(plan) as member:
            return _wait(plan, options.phase, options.iteration, options.pid, member)
    return _wait(plan, options.phase, options.iteration, options.pid, member)


def _wait(plan: Plan, phase: str, iteration: int, pid: int, member: Member) -> int:
    from rl_agent.trainer.launch import progress_file
    from rl_agent.trainer.states import StreamProgress

    staleness, limit_s = plan.config.grpo.batch.max_staleness, plan.config.grpo.timeout_s
    needed = needed_iteration(phase, iteration, staleness=staleness, last=plan.last_iteration)
    deadline = time.monotonic() + limit_s
    member.set_doing(f"{phase} of iteration {iteration}: waiting for the trainer to publish {needed}")
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        process = None
    try:
        while True:
            # Looked at before the file: what it wrote before its end counts.
            has_ended = process is None or bool(select.select([process], [], [], _LOOK_S)[0])
            progress = StreamProgress.read(progress_file(plan))
            if progress is not None and progress.iteration >= needed:
                reached = (progress.iteration, progress.weight_version)
                print(oldest_version(phase, iteration, *reached, staleness=staleness))
                return 0
            published = "its start" if progress is None else f"iteration {progress.iteration}"
            if has_ended:
                print(f"the trainer ended before iteration {needed}, after {published}", file=sys.stderr)
                return EXIT_RETRY_LATER
            if time.monotonic() >= deadline:
                print(
                    f"the trainer (process {pid}) did not publish iteration {needed} within"
                    f" trainer.timeout_s={limit_s:g}; it is after {published}",
                    file=sys.stderr,
                )
                return EXIT_DEADLINE
            member.check()
    finally:
        if process is not None:
            os.close(process)
