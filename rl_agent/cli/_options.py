"""Parsers of the verbs' command lines, and the options that many of them take."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rl_agent.config.plan import Plan
from rl_agent.errors import ConfigError, UsageError, in_one_line
from rl_agent.system.flag_parser import FlagParser

if TYPE_CHECKING:
    from rl_agent.cluster.member.member import Member
    from rl_agent.pool.manager_file import ManagerFile

MANAGER = "http://127.0.0.1:5000"
"""A manager that is started without settings listens here."""


def verb_parser(verb: str, summary: str, example: str = "") -> argparse.ArgumentParser:
    """Make the parser of a verb; `example` ends its help text, as it is written."""
    return FlagParser(
        prog=f"rl-agent {verb}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=example,
    )


def plan_parser(verb: str, summary: str, example: str = "") -> argparse.ArgumentParser:
    """Make the parser of a verb that works on a run: it takes `--plan`."""
    parser = verb_parser(verb, summary, example)
    help_text = "plan.json of a run (the verb `plan` writes it)"
    parser.add_argument("--plan", type=Path, required=True, help=help_text)
    return parser


def add_log_path(parser: argparse.ArgumentParser) -> None:
    """Add the option that says which run a verb is about."""
    parser.add_argument("--log-path", type=Path, required=True, help="log path of the run")


def add_iteration(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the option that says which iteration of the run a verb is about."""
    parser.add_argument("--iteration", type=int, required=required, help="iteration of the run, from 1")


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which of the nodes that train together this one is."""
    parser.add_argument("--nodes", type=int, default=1, help="nodes that train together (default 1)")
    parser.add_argument("--node-rank", type=int, default=0, help="this one's index, from 0 (default 0)")
    parser.add_argument("--master", metavar="HOST:PORT", help="rendezvous of the nodes: a port of node 0")


def manager_address(text: str) -> str:
    """Read the address of a manager, and no more: a password in it would be shown to all."""
    from yarl import URL

    try:
        url = URL(text)
        is_one = url.scheme in ("http", "https") and bool(url.host and url.port) and url == url.origin()
    except ValueError:
        is_one = False
    if not is_one or " " in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text


def add_manager(parser: argparse.ArgumentParser, *, action: str = "store") -> None:
    """Add the options that say where a manager is; `manager_of` reads them."""
    help_text = f"default: {MANAGER}"
    parser.add_argument("--manager", type=manager_address, action=action, metavar="URL", help=help_text)
    parser.add_argument(
        "--manager-file",
        metavar="PATH|URL",
        help="instead of --manager: file with its address; reread when the manager is silent",
    )


def manager_of(options: argparse.Namespace, last: str = "") -> "tuple[str, ManagerFile | None]":
    """Return a manager's address and the file that states it, which is waited for.

    Not so where an address is known of before, `last`: that is returned if the file states none. Raises
    UsageError, RetryLater.
    """
    from rl_agent.pool.manager_file import ManagerFile, wait_for_address

    where = options.manager_file
    if where is None:
        return options.manager or MANAGER, None
    if options.manager is not None:
        raise UsageError("--manager-file: states the manager's address; leave --manager out")
    if "://" in where and (not where.startswith(("http://", "https://")) or "@" in where):
        raise UsageError(f"--manager-file {where}: expected a path, or http://HOST:PORT/FILE")
    file = ManagerFile(where, options.tls_ca)
    return (last and file.read()) or last or wait_for_address(file, options.manager_timeout_s), file


@contextmanager
def member_or_alone(member: "Member | None", plan: Path) -> Iterator["Member"]:
    """Give the member of the run that the verb was called with, else one of a run of one node."""
    if member is not None:
        yield member
        return
    from rl_agent.cluster.member.member import Member

    with Member.alone(read_plan(plan)) as alone:
        yield alone


def log_folder(path: Path) -> Path:
    """Return the `--log-path` of a verb, without links. Raises ConfigError if it is not a folder."""
    try:
        folder = path.resolve()
        if folder.is_dir():
            return folder
    except (OSError, RuntimeError):  # a name too long, a loop of links
        pass
    raise ConfigError(f"--log-path {path}: is not a folder")


def read_plan(path: Path) -> Plan:
    """Read the `--plan` of a verb. Raises `ConfigError` if the file is not there or is no plan."""
    try:
        return Plan.read(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plan {path} cannot be read: {in_one_line(error)}") from error


def read_token(path: Path | None) -> str | None:
    """Return the first token of the file, else that of the environment. Raises UsageError."""
    from rl_agent.errors import ConfigError
    from rl_agent.http.tokens import read_tokens

    if path is None:
        return os.environ.get("RL_AGENT_POOL_TOKEN")
    try:
        return read_tokens(path)[0]
    except ConfigError as error:
        raise UsageError(f"--token-file: {error}") from error
