"""Turns the command line of `scripts/run.sh` into a checked plan.

Prints the plan's file and what else `run.sh` needs to know (`_facts`) as NUL-separated NAME=value words, or
with `--dry-run` the plan itself. Notes and errors go to stderr. The process named by RL_AGENT_DRIVER_PID
becomes the owner of the log path.
"""

import os
import sys

from rl_agent.cluster.member.services import driver_pid
from rl_agent.config.plan import Plan
from rl_agent.plan import arguments
from rl_agent.system.terminal import printable

SUMMARY = "check run.sh's arguments and write the plan of a run (prints its facts)"
TAKES_PATHS_OF_A_PERSON = True
"""An operating system's error about a path is one line, not a bug: run.sh hands on what a person typed."""


def main(argv: list[str]) -> int:
    if arguments.wants_help(argv):
        print(arguments.HELP, end="")
        return 0
    from rl_agent.cli.driver._facts import facts
    from rl_agent.plan.make import prepare, start

    prepared = prepare(argv, os.environ)
    if prepared.dry_run:
        from rl_agent.plan.show import show

        print(printable(show(prepared, os.environ)))
        return 0
    for note in prepared.notes:
        print(note, file=sys.stderr)
    for left in prepared.machine.leftovers:
        print(f"ending a stale process of a killed run: {left}", file=sys.stderr)
    path = start(prepared, driver_pid(os.environ))
    words = {"plan_file": str(path)} | facts(Plan.read(path), os.environ)
    sys.stdout.write("".join(f"{name}={value}\0" for name, value in words.items()))
    return 0
