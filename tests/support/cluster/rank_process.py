"""One node of a run, of which only the rollout is real: a member of the cluster that collects one iteration.

    python -m tests.support.cluster.rank_process --plan P [--resume if-begun] [--calls 1]

Prints what the verb prints; the exit status is the verb's. With `--calls` the verb is called again while it
returns 75 and the node is still a member, as run.sh does once it has started the engine again.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from rl_agent.cli.driver import rollout
from rl_agent.cluster.member.member import Member
from rl_agent.config.plan import Plan
from rl_agent.errors import EXIT_RETRY_LATER, HarnessError
from tests.support.cluster import lagging_folder

PAUSE_S = 0.1
"""The time between two calls; the engine needs longer to come back."""


def collect(plan: Path, resume: str | None, calls: int) -> int:
    argv = ["--plan", str(plan), "--iteration", "1", "--split", "train"]
    argv += ["--resume", resume] if resume else []
    node = Plan.read(plan)
    with Member.enter(node, os.environ, is_joiner=node.command.join) as member:
        for _ in range(calls):
            status = _call(argv, member)
            if status != EXIT_RETRY_LATER or _is_over(member):
                break
            time.sleep(PAUSE_S)
        if status:
            raise SystemExit(status)
    return status


def _call(argv: list[str], member: Member) -> int:
    try:
        return rollout.main(argv, member)
    except HarnessError as error:
        print(f"rollout: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def _is_over(member: Member) -> bool:
    try:
        member.check()
    except HarnessError:
        return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--resume")
    parser.add_argument("--calls", type=int, default=1)
    options = parser.parse_args()
    lagging_folder.install(os.environ)
    try:
        return collect(options.plan, options.resume, options.calls)
    except HarnessError as error:
        print(f"node: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
