"""`pool`: look at a rollout pool."""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rl_agent.errors import RetryLater, UsageError

SUMMARY = "look at a rollout pool: its engines, requests and costs"
EXAMPLE = """examples:
  python -m rl_agent.cli pool status
  python -m rl_agent.cli pool status --manager http://10.0.0.1:5000 --token-file pool.token --watch 1
  python -m rl_agent.cli pool status --json
"""
TIMEOUT_S = 5.0
MANAGER = "http://127.0.0.1:5000"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rl_agent.cli pool",
        description=SUMMARY,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("status",))
    parser.add_argument(
        "--manager", default="http://127.0.0.1:5000", metavar="URL", help="default: %(default)s"
    )
    parser.add_argument("--token-file", type=Path, help="file with the token; default: $RL_AGENT_POOL_TOKEN")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    parser.add_argument("--watch", type=float, metavar="S", help="show it again every S seconds")
    options = parser.parse_args(argv)
    if options.watch is not None and not options.watch > 0:
        raise UsageError(f"--watch {options.watch}: expected seconds above 0")
    while True:
        status = fetch_status(options.manager, read_token(options.token_file))
        _show(status, as_json=options.json, is_watching=options.watch is not None)
        if options.watch is None:
            return 0
        time.sleep(options.watch)


def read_token(path: Path | None) -> str | None:
    """The first token of the file, else that of the environment. Raises UsageError."""
    from rl_agent.errors import ConfigError
    from rl_agent.pool.settings import read_tokens

    if path is None:
        return os.environ.get("RL_AGENT_POOL_TOKEN")
    try:
        return next(iter(read_tokens(path)), None)
    except ConfigError as error:
        raise UsageError(f"--token-file: {error}") from error


def fetch_status(manager: str, token: str | None) -> dict[str, Any]:
    """Raises UsageError, RetryLater if the manager does not answer."""
    if not manager.startswith(("http://", "https://")):
        raise UsageError(f"--manager {manager}: expected http://HOST:PORT")
    request = urllib.request.Request(manager.rstrip("/") + "/status")  # noqa: S310 - the scheme was checked
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        words = "the token is missing or wrong" if error.code == 401 else error.reason
        raise UsageError(f"{manager} answers {error.code}: {words}") from error
    except (OSError, ValueError) as error:
        raise RetryLater(f"{manager} does not answer: {error}") from error


def _show(status: dict[str, Any], *, as_json: bool, is_watching: bool) -> None:
    if as_json:
        print(json.dumps(status))
        return
    if is_watching and sys.stdout.isatty():
        print("\033[H\033[2J", end="")
    print(table(status))


def table(status: dict[str, Any]) -> str:
    """The status as lines of text."""
    requests, cost = status["requests"], status["cost"]
    lines = [
        f"model {status['model'] or '(none yet)'}   weight version {status['weight_version']}",
        f"requests  submitted {requests['submitted']}  running {requests['running']}"
        f"  waiting {requests['open'] - requests['running']}  completed {requests['completed']}"
        f"  failed {requests['failed']}  moved {requests['moves']}",
        f"tokens {status['tokens']}   engine deaths {status['engine_deaths']}"
        + (f"   spent {cost['spent']:.2f} (on demand {cost['on_demand']:.2f})" if cost["spent"] else ""),
    ]
    for run in status["runs"]:
        lines.append(f"run {run['name']}  {run['ended']} of {run['submitted']} ended, {run['open']} open")
    head = ("engine", "state", "running", "tok/s", "tokens", "idle s", "up s", "lease s", "reason")
    rows = [head] + [
        (
            engine["name"],
            engine["state"] + ("?" if engine["is_doubted"] else ""),
            f"{engine['running']}/{engine['capacity']}",
            f"{engine['tokens_per_s']:.0f}",
            str(engine["useful_tokens"]),
            f"{engine['idle_s']:.0f}",
            f"{engine['up_s']:.0f}",
            f"{engine['lease_left_s']:.1f}",
            engine["reason"][:60],
        )
        for engine in status["engines"]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(lines)
