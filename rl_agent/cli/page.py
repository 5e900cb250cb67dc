"""The verb `page` shows runs in a browser: live, finished, or copied from elsewhere."""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_agent.cli._options import log_folder, read_plan, verb_parser
from rl_agent.cli._serving import add_tls_options, serve_until_told
from rl_agent.errors import ConfigError, HarnessError, UsageError
from rl_agent.paths import RunPaths

if TYPE_CHECKING:
    from rl_agent.config.plan import PageConfig, Plan
    from rl_agent.page.server import PageSettings

SUMMARY = "show runs in a browser: numbers, every trajectory, the pool; live or afterwards"
EXAMPLE = """examples:
  rl-agent page --log-path /home/user/exp1
  rl-agent page --log-path /home/user/exp1 --log-path /home/user/exp2      # side by side
  rl-agent page --log-path /shared/exp1 --host 0.0.0.0 \\
      --token-file page.token --tls-certificate page.pem --tls-key page.key

The page never changes a run, and works without a running one. It prints its address; Ctrl+C ends it.
"""
NICENESS = 10
"""The lowest priority, 19, would leave the page without an answer for half a minute on a busy machine."""


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if options.plan is None:
        return _serve(_settings(options), lambda url: print(f"page: {url}", flush=True))
    try:
        return _serve(_settings(options), lambda url: _say(f"page: {url}"))
    except HarnessError as error:  # the run goes on without it; its driver gives this process its terminal
        _say(f"no page: {error}")
        raise


def _say(words: str) -> None:
    """Print a line like those of run.sh."""
    print(f"{time.strftime('%H:%M:%S')} run: {words}", flush=True)


def _serve(settings: "PageSettings", on_listening: Callable[[str], None]) -> int:
    os.nice(NICENESS)  # a run on this machine comes first

    from rl_agent.page.server import serve

    serve_until_told(lambda leaving: serve(settings, on_listening, leaving))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = verb_parser("page", SUMMARY, EXAMPLE)
    parser.add_argument("--log-path", type=Path, action="append", help="log path of the run; may be repeated")
    parser.add_argument(
        "--plan", type=Path, help="plan.json of a run: show this run with its settings `page`"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=int, help="default: 8600, or any free port where that is taken; 0: any"
    )
    parser.add_argument("--token-file", type=Path, help="file with the token that viewers give once")
    add_tls_options(parser)
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name under which browsers may open the page",
    )
    return parser


def _settings(options: argparse.Namespace) -> "PageSettings":
    """Raises UsageError and ConfigError."""
    from pydantic import ValidationError

    from rl_agent.config.plan import PageConfig

    if (options.plan is None) == (options.log_path is None):
        raise UsageError("give --log-path, or --plan")
    if options.port is not None and not 0 <= options.port <= 65535:
        raise UsageError(f"--port {options.port}: from 0 to 65535")
    if options.plan is not None:
        plan = read_plan(options.plan)
        port = plan.config.page.port
        page = settings_of((plan.config.log_path,), plan.config.page, port if isinstance(port, int) else None)
        return replace(page, ask_manager=partial(_manager_status, plan)) if plan.config.is_pooled else page
    try:
        config = PageConfig(
            port="auto",
            host=options.host,
            token_file=options.token_file,
            tls_certificate=options.tls_certificate,
            tls_key=options.tls_key,
            allowed_hosts=tuple(options.allowed_host),
        )
    except ValidationError as error:
        raise UsageError(f"page: {'; '.join(problem['msg'] for problem in error.errors())}") from error
    log_paths = tuple(dict.fromkeys(log_folder(path) for path in options.log_path))
    for path in log_paths:
        paths = RunPaths(path)
        trajectories = (paths.trajectory_dir("train"), paths.trajectory_dir("test"))
        parts = (paths.run_dir("latest").parent, paths.metrics, *trajectories)
        if not any(part.exists() for part in parts):
            raise ConfigError(f"--log-path {path}: holds no run; name the --log-path that run.sh was given")
    return settings_of(log_paths, config, options.port)


def _manager_status(plan: "Plan") -> dict[str, Any]:
    """Raises HarnessError where the manager does not answer."""
    from rl_agent.pool.run_pool import ask_manager

    _, status = ask_manager(plan, os.environ, "/status")
    return dict(status)


def settings_of(log_paths: tuple[Path, ...], config: "PageConfig", port: int | None) -> "PageSettings":
    """Return what the server is told. Raises ConfigError."""
    from rl_agent.http.tls import serving
    from rl_agent.http.tokens import TokenCheck
    from rl_agent.page.server import PageSettings

    tokens = TokenCheck.of(config.token_file, "page.token_file")
    tls = serving(config.tls_certificate, config.tls_key, "page.tls_key")
    return PageSettings(log_paths, config.host, port, tokens, tls, config.allowed_hosts)
