"""The verb `run` becomes `scripts/run.sh`, with this Python: an installed package has no checkout."""

import os
import sys

from rl_agent.paths import PROJECT_ROOT
from rl_agent.plan import arguments

SUMMARY = "run the loop of rollouts and updates: the same as scripts/run.sh"


def main(argv: list[str]) -> int:
    if arguments.wants_help(argv):
        print(arguments.HELP.replace("bash scripts/run.sh", "rl-agent run"), end="")
        return 0
    script = PROJECT_ROOT / "scripts" / "run.sh"
    environment = {**os.environ, "RL_AGENT_PYTHON": sys.executable}
    os.execvpe("bash", ["bash", str(script), *argv], environment)  # noqa: S606 - a list, and no shell reads it
