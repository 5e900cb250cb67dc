"""Finds a verb and turns its errors into one line and an exit code."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))  # the folder of `python -m`: no file there stands in for a library

import importlib
import inspect
import pkgutil
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

import rl_agent.cli.driver
from rl_agent.cli._result import VerbResult
from rl_agent.errors import EXIT_CONFIG, EXIT_USAGE, HarnessError
from rl_agent.system.extras import missing_library
from rl_agent.system.flag_parser import near_flag
from rl_agent.system.terminal import EXIT_INTERRUPTED, end, guard_output, indented

if TYPE_CHECKING:
    from rl_agent.cluster.member.member import Member
    from rl_agent.rollout.loop import RolloutLoop


def people_verbs() -> list[str]:
    """Name the verbs that a person calls."""
    return _verbs_in(rl_agent.cli)


def driver_verbs() -> list[str]:
    """Name the verbs that `run.sh` calls, and a person who drives phases by hand."""
    return _verbs_in(rl_agent.cli.driver)


def verbs() -> list[str]:
    return sorted([*people_verbs(), *driver_verbs()])


def module_of(verb: str) -> ModuleType:
    """Import the module of a verb. Raises KeyError if there is none of this name."""
    for package in (rl_agent.cli, rl_agent.cli.driver):
        if verb in _verbs_in(package):
            return importlib.import_module(f"{package.__name__}.{verb.replace('-', '_')}")
    raise KeyError(verb)


def _verbs_in(package: ModuleType) -> list[str]:
    modules = (module for module in pkgutil.iter_modules(package.__path__) if not module.ispkg)
    names = (module.name for module in modules if not module.name.startswith("_"))
    return sorted(name.replace("_", "-") for name in names)


def show_help() -> None:
    print("usage: rl-agent VERB [options]      (see VERB --help; --version)")
    for title, names in (("", people_verbs()), ("called by run.sh:\n", driver_verbs())):
        print(f"\n{title}" + "\n".join(f"  {verb:<16} {module_of(verb).SUMMARY}" for verb in names))


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        show_help()
        return 0 if argv else EXIT_USAGE
    if argv == ["--version"]:
        print(f"rl-agent {metadata.version('rl_agent')}")
        return 0
    record = call(argv)
    for word in record.words():
        print(word)
    return record.status


def call(
    argv: list[str], member: "Member | None" = None, rollouts: "RolloutLoop | None" = None
) -> VerbResult:
    """Run one verb; a deliberate failure becomes a line on stderr and its exit code.

    `member`, `rollouts` and this function go to the verbs that have a parameter of that name.
    """
    verb, *rest = argv
    if verb not in verbs():
        near = "" if verb.startswith("-") else near_flag(verb, verbs())
        hint = near or f"; there are {', '.join(people_verbs())}"
        print(f"rl_agent: no verb {verb!r}{hint}", file=sys.stderr)
        return VerbResult(status=EXIT_USAGE)
    module = module_of(verb)
    takes_paths = verb in people_verbs() or getattr(module, "TAKES_PATHS_OF_A_PERSON", False)
    arguments = {"call": call, "member": member, "rollouts": rollouts}
    parameters = inspect.signature(module.main).parameters
    try:
        result = module.main(rest, **{name: arguments[name] for name in arguments if name in parameters})
        return result if isinstance(result, VerbResult) else VerbResult(status=result)
    except HarnessError as error:
        line = f"{verb}: {error}"
        print(indented(line), file=sys.stderr)
        return VerbResult(status=error.exit_code, problem=line)
    except ModuleNotFoundError as error:
        if (problem := missing_library(error)) is None:
            raise
        line = f"{verb}: {problem}"
        print(line, file=sys.stderr)
        return VerbResult(status=EXIT_CONFIG, problem=line)
    except OSError as error:
        # A path that a person gave can be anything: a loop of links, a name too long, a folder for a file.
        if not takes_paths or error.filename is None:
            raise
        print(indented(f"{verb}: {error.filename}: {error.strerror}"), file=sys.stderr)
        return VerbResult(status=EXIT_CONFIG)
    except KeyboardInterrupt:
        return VerbResult(status=EXIT_INTERRUPTED)


def run() -> None:
    """Run the verb that the command line names: the console entry point."""
    words = sys.argv[1:]
    guard_output(escapes_stdout=not words or words[0] not in driver_verbs())  # that is read by bash
    end(lambda: main(words))


if __name__ == "__main__":
    run()
