"""Parsers of the verbs' command lines, and the options that many of them take."""

import argparse
from pathlib import Path

from rl_agent.config import Plan
from rl_agent.errors import ConfigError


def verb_parser(verb: str, summary: str, example: str = "") -> argparse.ArgumentParser:
    """Make the parser of a verb; `example` ends its help text, as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m rl_agent.cli {verb}",
        description=summary,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def plan_parser(verb: str, summary: str, example: str = "") -> argparse.ArgumentParser:
    """Make the parser of a verb that works on a run: it takes `--plan`."""
    parser = verb_parser(verb, summary, example)
    help_text = "plan.json of a run (the verb `plan` writes it)"
    parser.add_argument("--plan", type=Path, required=True, help=help_text)
    return parser


def log_folder(path: Path) -> Path:
    """Return the `--log-path` of a verb, without links. Raises ConfigError if it is no folder."""
    try:
        found = path.resolve()
        if found.is_dir():
            return found
    except (OSError, RuntimeError):  # a name too long, a loop of links
        pass
    raise ConfigError(f"--log-path {path}: is not a folder")


def read_plan(path: Path) -> Plan:
    """Read the `--plan` of a verb. Raises `ConfigError` if the file is not there or is no plan."""
    try:
        return Plan.read(path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"--plan {path} cannot be read: {reason}") from error
