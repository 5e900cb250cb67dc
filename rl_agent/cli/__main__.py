"""Finds the verb and turns its errors into one line and an exit code."""

import importlib
import inspect
import pkgutil
import sys
from typing import TYPE_CHECKING

import rl_agent.cli
from rl_agent.errors import EXIT_USAGE, HarnessError

if TYPE_CHECKING:
    from rl_agent.cluster.member import Member


def verbs() -> list[str]:
    names = (module.name for module in pkgutil.iter_modules(rl_agent.cli.__path__))
    return sorted(name.replace("_", "-") for name in names if not name.startswith("_"))


def show_help() -> None:
    print("usage: python -m rl_agent.cli VERB [options]      (VERB --help tells more)\n")
    for verb in verbs():
        module = importlib.import_module(f"rl_agent.cli.{verb.replace('-', '_')}")
        print(f"  {verb:<16} {module.SUMMARY}")


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        show_help()
        return 0 if argv else EXIT_USAGE
    return call(argv)


def call(argv: list[str], member: "Member | None" = None) -> int:
    """Run one verb; a deliberate failure becomes a line on stderr and its exit code.

    `member` goes to the verbs that have a parameter of that name.
    """
    verb, *rest = argv
    if verb not in verbs():
        print(f"rl_agent: no verb {verb!r}; there are {', '.join(verbs())}", file=sys.stderr)
        return EXIT_USAGE
    module = importlib.import_module(f"rl_agent.cli.{verb.replace('-', '_')}")
    try:
        if member is not None and "member" in inspect.signature(module.main).parameters:
            return int(module.main(rest, member=member))
        return int(module.main(rest))
    except HarnessError as error:
        print(f"{verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def run() -> None:
    """Console entry point."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
