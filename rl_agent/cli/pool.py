"""The verb `pool` shows a rollout pool."""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rl_agent.cli._numbers import seconds
from rl_agent.cli._options import MANAGER, manager_address, read_plan, read_token, verb_parser
from rl_agent.errors import UsageError
from rl_agent.system.terminal import clear

SUMMARY = "show a rollout pool; for run.sh: wait for the run's own pool, or set the model that it serves"
EXAMPLE = """actions
  status  its engines, requests and costs
  ready   wait until the manager of a run listens; fail as soon as it dies
  want    make the pool of a run serve its newest model
  scale   start and stop machines as the pool wants them: `pool scale --help`

examples
  rl-agent pool status
  rl-agent pool status --manager http://10.0.0.1:5000 --token-file pool.token --watch 1
  rl-agent pool status --json
  rl-agent pool want --plan runs/r1/plan.json
"""


def main(argv: list[str]) -> int:
    if argv[:1] == ["scale"]:
        from rl_agent.cli.actions.pool_scale import main as scale

        return scale(argv[1:])
    parser = verb_parser("pool", SUMMARY, EXAMPLE)
    parser.add_argument("action", choices=("status", "ready", "want", "scale"), help="see below")
    parser.add_argument("--plan", type=Path, help="plan.json of a run, instead of --manager and --token-file")
    parser.add_argument("--pid", type=int, help="for ready: leading process of the manager's group")
    parser.add_argument("--log", type=Path, help="for ready: log of the manager, shown if it dies")
    parser.add_argument(
        "--manager", type=manager_address, default=MANAGER, metavar="URL", help="default: %(default)s"
    )
    parser.add_argument("--token-file", type=Path, help="file with the token; default: $RL_AGENT_POOL_TOKEN")
    parser.add_argument("--tls-ca", type=Path, metavar="PEM", help="additional certificates to trust")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--watch", type=seconds, metavar="S", help="refresh every S seconds")
    options = parser.parse_args(argv)
    if options.plan is not None:
        return _of_run(options)
    if options.action != "status":
        raise UsageError(f"{options.action}: give the --plan of a run")
    return _status(options.manager, read_token(options.token_file), options.tls_ca, options)


def _status(manager: str, token: str | None, tls_ca: Path | None, options: argparse.Namespace) -> int:
    from rl_agent.pool.client import ask

    while True:
        status = ask(manager, "/status", token, tls_ca=tls_ca)
        _show(status, as_json=options.json, is_watching=options.watch is not None)
        sys.stdout.flush()
        if options.watch is None:
            return 0
        time.sleep(options.watch)


def _of_run(options: argparse.Namespace) -> int:
    from rl_agent.engine.ready import wait_ready
    from rl_agent.pool import run_pool
    from rl_agent.system.processes import ProcessId

    plan = read_plan(options.plan)
    if options.action == "want":
        run_pool.want_newest(plan, os.environ)
    elif options.action == "status":
        token = run_pool.token(plan, os.environ)
        return _status(run_pool.manager_url(plan), token, run_pool.tls_ca(plan), options)
    else:
        leader = ProcessId.of(options.pid)
        state = wait_ready(
            lambda: run_pool.probe_manager(plan, os.environ),
            lambda: leader.is_running,
            options.log,
            timeout_s=plan.config.engine.start_timeout_s,
        )
        print(state.detail, file=sys.stderr)
    return 0


def _show(status: dict[str, Any], *, as_json: bool, is_watching: bool) -> None:
    if as_json:
        print(json.dumps(status))
        return
    if is_watching and sys.stdout.isatty():
        clear()
    print(table(status, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))


def _weights_problem(engine: dict[str, Any], status: dict[str, Any]) -> str:
    is_behind = engine["weight_version"] < status["weight_version"]
    return str(engine["weights_problem"]) if is_behind else ""


DROPPED = ("lease s", "tokens", "up s", "idle s")
"""Columns of the engines that a narrow terminal has no room for, the first of them first."""


def table(status: dict[str, Any], width: int | None = None) -> str:
    """Return the status as lines of text; with a `width` the engines have as many columns as fit."""
    requests, cost = status["requests"], status["cost"]
    lines = [
        f"model {status['model'] or '(none yet)'}   weight version {status['weight_version']}",
        f"requests  submitted {requests['submitted']}  running {requests['running']}"
        f"  waiting {requests['open'] - requests['running']}  completed {requests['completed']}"
        f"  failed {requests['failed']}  moved {requests['moves']}",
        f"tokens {status['tokens']}   engine deaths {status['engine_deaths']}"
        + (f"   spent {cost['spent']:.2f} (on demand {cost['on_demand']:.2f})" if cost["spent"] else ""),
    ]
    if demand := status.get("wanted"):
        counts = ", ".join(
            f"{demand['present'].get(kind, 0)} of {count} {kind}" for kind, count in demand["counts"].items()
        )
        lines += [f"wanted {counts}: {demand['reason']}"] if counts else []
    if status["set_aside"]["count"]:
        newest = status["set_aside"]["newest"][-1]
        lines.append(f"set aside {status['set_aside']['count']}, the newest: {newest[:100]}")
    for run in status["runs"]:
        lines.append(f"run {run['name']}  {run['ended']} of {run['submitted']} ended, {run['open']} open")
    head = ("engine", "state", "weights", "running", "tok/s", "tokens", "idle s", "up s", "lease s", "reason")
    rows = [head] + [
        (
            engine["name"],
            engine["state"] + ("?" if engine["is_doubted"] else ""),
            f"{engine['weight_version']}" + ("…" if engine["is_fetching_weights"] else ""),
            f"{engine['running']}/{engine['capacity']}",
            f"{engine['tokens_per_s']:.0f}",
            str(engine["useful_tokens"]),
            f"{engine['idle_s']:.0f}",
            f"{engine['up_s']:.0f}",
            f"{engine['lease_left_s']:.1f}",
            (engine["reason"] or _weights_problem(engine, status))[:60],
        )
        for engine in status["engines"]
    ]
    columns = list(zip(*rows, strict=True))
    for name in DROPPED:
        if width is not None and _row_length(columns) > width:
            columns = [column for column in columns if column[0] != name]
    widths = [max(map(len, column)) for column in columns]
    lines += [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    return "\n".join(lines)


def _row_length(columns: list[tuple[str, ...]]) -> int:
    """Return the length of the longest row, without the reasons, which may go on in the next line."""
    return sum(max(map(len, column)) + 2 for column in columns if column[0] != "reason") - 2
