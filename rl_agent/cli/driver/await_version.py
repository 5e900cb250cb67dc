"""Waits for the streaming trainer, where a phase needs what it has not published yet.

published what is needed ──► 0       (looked at first: it counts, whatever became of the trainer since)
a rank of it ended, or its node ──► the master: 75, and it orders the phase anew
                                ──► a worker: tells the master, waits for that order, and 75
"""

import argparse
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Self

from rl_agent.cli._options import add_iteration, member_or_alone, plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver._wait_lines import WaitLines
from rl_agent.cluster.member.member import Member
from rl_agent.cluster.protocol.records import PhaseKey
from rl_agent.cluster.protocol.schedule import needed_iteration, oldest_version
from rl_agent.config.plan import Plan
from rl_agent.errors import EXIT_DEADLINE, EXIT_RETRY_LATER

if TYPE_CHECKING:
    from rl_agent.trainer.grpo.checkpoint.states import StreamProgress

SUMMARY = "wait until the trainer has published what a phase needs (0), the deadline (124), its death (75)"
EXAMPLE = """examples:
  rl-agent await-version --plan runs/r1/plan.json --iteration 3 --phase rollout --pid 4711 \\
      --training 1/train-1
"""
LOST, FAILED = "lost", "failed"
_LOOK_S = 0.1
"""The longest time between two looks."""


def main(argv: list[str], member: Member | None = None) -> VerbResult:
    """Returns the oldest weight version that the phase may use; with 75 why it ended: lost or failed."""
    parser = plan_parser("await-version", SUMMARY, EXAMPLE)
    add_iteration(parser)
    parser.add_argument(
        "--phase", choices=("evaluate", "rollout", "update"), required=True, help="phase that waits"
    )
    parser.add_argument("--pid", type=int, default=0, help="process id of the trainer on this node; 0: none")
    parser.add_argument("--training", default="", help="phase in which the trainer was started: 1/train-1")
    options = parser.parse_args(argv)
    plan = read_plan(options.plan)
    with member_or_alone(member, options.plan) as member:
        return _wait(plan, options.phase, options.iteration, _Training(options, member))


def _wait(plan: Plan, phase: str, iteration: int, training: "_Training") -> VerbResult:
    from rl_agent.trainer.grpo.checkpoint.states import StreamProgress
    from rl_agent.trainer.grpo.launch import progress_file

    limit_s, needed = plan.config.grpo.timeout_s, _needed(plan, phase, iteration)
    began = time.monotonic()
    member = training.member
    member.set_doing(f"{phase} of iteration {iteration}: waiting for the trainer to publish {needed}")
    look_s = 0.0
    with training, WaitLines() as lines:
        while True:
            training.look(look_s)  # before the file: what it wrote before its end counts
            progress = StreamProgress.read(progress_file(plan))
            oldest = usable_version(plan, phase, iteration, progress)
            if oldest is not None:
                return VerbResult({"min_weight_version": oldest})
            published = "no iteration" if progress is None else f"iteration {progress.iteration}"
            if (end := training.end()) is not None:
                kind, reason = end
                print(f"{reason} before iteration {needed}, after {published}", file=sys.stderr)
                return VerbResult({"end": kind}, EXIT_RETRY_LATER)
            waited_s = time.monotonic() - began
            look_s = pause_before_look(waited_s)
            waited = f"{waited_s:.0f} of {limit_s:g} s"
            lines.report(waited_s, f"trainer: training iteration {needed}  {waited} ({published} is done)")
            if waited_s >= limit_s:
                print(
                    f"the trainer (process {training.pid}) did not publish iteration {needed} within"
                    f" trainer.timeout_s={limit_s:g}; it is after {published}",
                    file=sys.stderr,
                )
                return VerbResult(status=EXIT_DEADLINE)
            member.check()


def pause_before_look(waited_s: float) -> float:
    """Return the seconds until the next look at what the trainer has published: a twentieth of the wait."""
    return min(_LOOK_S, 0.01 + waited_s / 20)


def usable_version(plan: Plan, phase: str, iteration: int, progress: "StreamProgress | None") -> int | None:
    """Return the oldest weight version that a phase may use; None if it has to wait for the trainer."""
    if progress is None or progress.iteration < _needed(plan, phase, iteration):
        return None
    staleness = plan.config.grpo.batch.max_staleness
    return oldest_version(phase, iteration, progress.iteration, progress.weight_version, staleness=staleness)


def _needed(plan: Plan, phase: str, iteration: int) -> int:
    staleness = plan.config.grpo.batch.max_staleness
    return needed_iteration(phase, iteration, staleness=staleness, last=plan.last_iteration)


class _Training:
    """The trainer as this node sees it: its own part, and what the others say of theirs."""

    def __init__(self, options: argparse.Namespace, member: Member) -> None:
        self.pid: int = options.pid
        self.member = member
        iteration, _, phase = options.training.partition("/")
        self._key = PhaseKey(int(iteration), phase) if phase else None
        self._process: int | None = None
        self._has_ended = False
        self._known_at: float | None = None
        """Time at which the master saw that a part of it had ended."""

    def __enter__(self) -> Self:
        try:
            self._process = os.pidfd_open(self.pid) if self.pid else None
        except ProcessLookupError:
            self._process = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            os.close(self._process)

    def look(self, wait_s: float) -> None:
        """Note whether the part of this node has ended, after so many seconds in which it may end."""
        if self._has_ended:
            time.sleep(wait_s)
        elif self._process is None or select.select([self._process], [], [], wait_s)[0]:
            self._has_ended = True

    def end(self) -> tuple[str, str] | None:
        """Return why it has to begin anew, and in words; None while it need not."""
        return self._end_at_master() if self.member.is_master else self._end_at_worker()

    def _end_at_worker(self) -> tuple[str, str] | None:
        """The master alone gives up an order: it may have seen what this node does not see yet."""
        if self._has_ended and self._key is not None:
            self.member.finish(*self._key, "failed")
            self._key = None
        return (LOST, "the trainer ended") if self.member.has_newer_order else None

    def _end_at_master(self) -> tuple[str, str] | None:
        """Processes end as soon as another node's are gone, and before that node is known to be lost."""
        member, key = self.member, self._key
        if key is None:
            return (FAILED, "the trainer ended") if self._has_ended else None
        decision = member.decision(*key)
        if decision is not None:
            return LOST, f"the trainer ended, for {', '.join(decision.lost)},"
        if not self._has_ended and not member.who_failed(*key):
            return None
        now = time.monotonic()
        self._known_at = now if self._known_at is None else self._known_at
        is_lease_over = now - self._known_at > member.plan.config.cluster.lease_s + _LOOK_S
        if member.others_straggling(key) and not is_lease_over:
            return None
        return FAILED, " ".join(["the trainer ended", *(f"on {name}" for name in member.who_failed(*key))])
