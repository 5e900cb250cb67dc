"""Asks the run's engine who it is, or waits until it is ready."""

import argparse
import os
import sys
from pathlib import Path

from rl_agent.cli._options import plan_parser, read_plan
from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver._wait_lines import WaitLines
from rl_agent.cluster.member.member import Member
from rl_agent.config.plan import Plan
from rl_agent.engine.model import published_version
from rl_agent.engine.ready import wait_ready
from rl_agent.engine.served import listeners
from rl_agent.engine.server import LOG_ENDS, PROBE_TIMEOUT_S, Answer, Probe, last_words, probe, stage_in
from rl_agent.errors import ConfigError
from rl_agent.system.processes import ProcessId, members, pid_space, read_groups
from rl_agent.system.terminal import one_line

SUMMARY = "check which model the engine serves, or wait until it is ready"
EXAMPLE = """examples:
  rl-agent engine --plan runs/r1/plan.json check
  rl-agent engine --plan runs/r1/plan.json ready --pid 4711 --log runs/r1/logs/vllm-1-1.log
"""

CHECK_TIMEOUT_S = 15.0
"""Longer than while it starts: a server on a busy machine that is taken for hung costs a start."""


def parser() -> argparse.ArgumentParser:
    parser = plan_parser("engine", SUMMARY, EXAMPLE)
    actions = parser.add_subparsers(dest="action", required=True)
    check = "return the answer: nothing, not-ready, wanted or old-version; any other model is an error (78)"
    actions.add_parser("check", help=check).add_argument(
        "--version", type=int, help="weight version that it has to serve; default: what model.pt leads to"
    )
    ready = actions.add_parser("ready", help="wait for a starting server; fail as soon as it dies")
    ready.add_argument("--pid", type=int, required=True, help="process that leads the server's group")
    log = "the server's log, shown if it dies; default: others start it, there is no log here"
    ready.add_argument("--log", type=Path, default=Path(os.devnull), help=log)
    return parser


def main(argv: list[str], member: Member | None = None) -> int | VerbResult:
    options = parser().parse_args(argv)
    plan = read_plan(options.plan)
    if options.action == "check":
        return _check(plan, options.version)
    return _ready(plan, options.pid, options.log, member)


def _probe(plan: Plan, timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
    """Probe the run's engine at its address, or as the manager of its pool sees it."""
    if plan.config.is_pooled:
        from rl_agent.pool import run_pool

        return run_pool.probe(plan, os.environ)
    return probe(plan.config, os.environ, timeout_s)


def _check(plan: Plan, weight_version: int | None) -> VerbResult:
    status = _probe(plan, CHECK_TIMEOUT_S)
    if status.answer is Answer.STRANGER:
        raise ConfigError(status.detail)
    answer, detail, seen = status.answer, status.detail, published_version(plan.paths)
    # A streaming trainer may switch model.pt at any time; the pool knows what it wants.
    is_fixed = weight_version is not None and not plan.config.is_streaming
    if answer is Answer.WANTED and is_fixed and weight_version != seen:
        answer = Answer.OLD_VERSION
        detail = f"{plan.paths.model_link}: leads to weight version {seen} here, {weight_version} is wanted"
    if answer is Answer.OLD_VERSION:
        print(detail, file=sys.stderr)
    return VerbResult({"answer": answer.value})


def _ready(plan: Plan, pid: int, log: Path, member: Member | None) -> int:
    """Wait until the engine is ready. Raises RetryLater like `Member.check`: the pool is the master's."""

    def ask() -> Probe:
        if member is not None:
            member.check()
        status = _probe(plan)
        if status.answer is not Answer.NOTHING:
            _check_listener(plan, pid)
        return status

    limit_s = plan.config.engine.start_timeout_s

    def report(waited_s: float) -> None:
        lines.report(waited_s, f"engine: {stage_in(log)}  {waited_s:.0f} of {limit_s:g} s{_end_of(log)}")

    if member is not None:
        member.set_doing("starting the engine")
    leader = ProcessId.of(pid)
    with WaitLines() as lines:
        state = wait_ready(ask, lambda: leader.is_running, log, timeout_s=limit_s, on_wait=report)
    if member is not None:
        member.set_doing("the engine is ready")
    print(f"engine: {state.detail}", file=sys.stderr)
    return 0


def _check_listener(plan: Plan, pid: int) -> None:
    """Refuse the engine of another run that took the port first. Raises MachineError.

    It may serve the same model now, and another one later. Who listens for another user is not known here.
    """
    if plan.config.is_pooled:
        return
    engine, pids = plan.config.engine, listeners(plan.config.engine.port)
    groups = [group for group in read_groups(plan.groups_dir(pid_space())) if group.leader.pid == pid]
    if pids and not pids & {pid, *(process for group in groups for process in members(group))}:
        from rl_agent.plan.checks import port_in_use

        raise port_in_use(f"engine.host={engine.host} engine.port={engine.port}", engine.port)


def _end_of(log: Path) -> str:
    """Return what a log ends with; nothing where the engine is another's, of which there is no log here."""
    words = last_words(log)
    return f"{LOG_ENDS}{one_line(words)}" if words else ""
