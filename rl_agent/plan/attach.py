"""A worker or a joining node finds the run it belongs to by the master's heartbeat.

A heartbeat file that lies still was left by an earlier run and means nothing; one that moves is a live run,
and names it. So the order of the starts does not matter. A node that was queued before the end of the run it
was meant for, and starts after it, has nothing to wait for.
"""

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_agent.cluster.shared_fs.run_lock import heartbeat_path
from rl_agent.config.plan import ClusterConfig, Config, Plan
from rl_agent.errors import ConfigError, DeadlineError, NothingLeft
from rl_agent.http.tokens import is_loopback
from rl_agent.paths import RunPaths
from rl_agent.system.files import read_object

QUEUED_AT = "RL_AGENT_QUEUED_AT"
"""Variable with the time, in epoch seconds, at which a job that joins was queued."""
_POLL_S = 0.2
_REPORT_EVERY_S = 30.0


def wait_for_run(
    log_path: Path,
    cluster: ClusterConfig,
    who: str,
    report: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Plan:
    """Return the master's plan of the run of `log_path` as soon as its master shows that it lives.

    Raises DeadlineError after `cluster.start_timeout_s`.
    """
    path, started = heartbeat_path(log_path), clock()
    seen, reported_at = read_object(path), float("-inf")
    while True:
        sleep(_POLL_S)
        now, beat = clock(), read_object(path)
        if beat and beat != seen and seen and not beat.get("ended"):
            plan = _plan_of(log_path, beat)
            if plan is not None:
                return plan
        seen = beat
        waited_s = now - started
        if waited_s >= cluster.start_timeout_s:
            raise DeadlineError(
                f"{who}: no master (rank 0) appeared in {log_path} for {waited_s:.0f} s"
                " (cluster.start_timeout_s); start it there with the same arguments and --master"
            )
        if now - reported_at >= _REPORT_EVERY_S:
            report(f"{who}: waiting for the master (rank 0) of a run in {log_path}, {waited_s:.0f} s so far")
            reported_at = now


def check_not_late(log_path: Path, environ: Mapping[str, str]) -> None:
    """Raise NothingLeft if the run was done while this node waited in a queue."""
    path, queued_at = heartbeat_path(log_path), environ.get(QUEUED_AT, "")
    if not queued_at.isdecimal():
        return
    ended = read_object(path).get("ended")
    if isinstance(ended, dict) and ended.get("status") == 0 and path.stat().st_mtime >= int(queued_at):
        raise NothingLeft(f"--join: the run in {log_path} ended before this node's turn")


def check_reach(config: Config, who: str, own_host: str | None = None) -> None:
    """Refuse a pool that only the master's machine can reach, where this is another. Raises ConfigError."""
    beat, own = read_object(heartbeat_path(config.log_path)), own_host or socket.gethostname()
    masters = beat.get("host", own)
    if config.is_pooled and is_loopback(config.pool.host) and masters != own:
        raise ConfigError(
            f"{who}: pool.host={config.pool.host} is reached on the master's machine, {masters}, and not from"
            f" {own}; on every node set pool.host=0.0.0.0 and pool.token_file=PATH"
        )


def _plan_of(log_path: Path, beat: dict[str, Any]) -> Plan | None:
    """Read the master's plan; None as long as the shared file system does not show it here."""
    try:
        return Plan.read(RunPaths(log_path).run_dir(beat["run_id"]) / f"plan-{beat['attempt']}.json")
    except (OSError, KeyError):
        return None
