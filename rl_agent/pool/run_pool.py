"""The pool of a run (`pool=elastic`): its manager, the model it serves, and how nodes join it.

The master starts the manager, which writes its address into the run's folder; every node reads it there. A
node's engine is known in the pool by the node's name. Engines that others start join and leave as they like.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yarl import URL

from rl_agent.cluster.shared_fs.address import advertised_address, outward_address
from rl_agent.config.plan import Plan, PoolConfig
from rl_agent.engine.model import engines_model
from rl_agent.engine.server import (
    Answer,
    Probe,
)
from rl_agent.errors import DeadlineError, RetryLater
from rl_agent.pool.client import ask
from rl_agent.pool.gpu_turns import TurnFiles
from rl_agent.pool.settings import tokens_of
from rl_agent.system.files import write_whole
from rl_agent.system.processes import pid_space, read_groups

POLL_S = 0.2
LOOPBACK = "127.0.0.1"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def _file(plan: Plan, ending: str) -> Path:
    """Return a file of the pool; each attempt has its own, so that none reads an earlier one's."""
    return plan.paths.run_dir(plan.run_id) / f"pool-{plan.attempt}.{ending}"


def url_file(plan: Plan) -> Path:
    """Return the file in which the manager of this attempt states its address."""
    return _file(plan, "url")


def manager_settings(plan: Plan) -> PoolConfig:
    """Return the settings of the run's manager: the engines' model, and the port and journal of before."""
    model, pool = engines_model(plan), plan.config.pool
    own = {"journal": _file(plan, "sqlite"), "model": model.path, "weight_version": model.weight_version}
    with contextlib.suppress(FileNotFoundError):  # engines and trainer know that port
        own["port"] = pool.port or URL(url_file(plan).read_text(encoding="utf-8").strip()).port
    return pool.model_copy(update=own)


def announce(plan: Plan, url: str) -> None:
    """Publish the manager's address to the nodes, and to workers that others start, whatever the attempt."""
    pool = plan.config.pool
    host = advertised_address(plan.config.cluster) if pool.host in _ANY else pool.host
    for file in (url_file(plan), plan.paths.run_dir(plan.run_id) / "pool.url"):
        write_address(file, url, host)


def write_address(file: Path, url: str, host: str) -> None:
    """Write a file that states the address of the manager listening at `url`, as others reach it."""
    reached_at = outward_address() if host in _ANY else host
    write_whole(file, str(URL(url).with_host(reached_at).origin()) + "\n")


def manager_url(plan: Plan) -> str:
    """Return the manager's address as this node reaches it. Raises RetryLater if there is none yet."""
    try:
        url = URL(url_file(plan).read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        raise RetryLater(f"the manager of run {plan.run_id} has not been started yet") from None
    is_here = plan.is_master and plan.config.pool.host in _ANY and url.scheme == "http"
    return str((url.with_host(LOOPBACK) if is_here else url).origin())


def wait_for_manager(plan: Plan) -> str:
    """Wait until the master has started the manager, and return its address. Raises DeadlineError."""
    deadline = time.monotonic() + plan.config.cluster.start_timeout_s
    while True:
        try:
            return manager_url(plan)
        except RetryLater as error:
            if time.monotonic() > deadline:
                raise DeadlineError(f"{error} (cluster.start_timeout_s)") from None
            time.sleep(POLL_S)


def token(plan: Plan, environ: Mapping[str, str]) -> str | None:
    return next(iter(tokens_of(plan.config.pool, environ)), None)


def tls_ca(plan: Plan) -> Path | None:
    """Return the certificate that the run's nodes trust besides the system's authorities."""
    return plan.config.pool.tls_ca or plan.config.pool.tls_certificate


def ask_manager(plan: Plan, environ: Mapping[str, str], path: str, body: Any = None) -> tuple[str, Any]:
    """Return the manager's address and its answer. Raises RetryLater, ConfigError."""
    url = manager_url(plan)
    return url, ask(url, path, token(plan, environ), body, tls_ca=tls_ca(plan))


def turn_file(plan: Plan) -> Path:
    """Return the file that records whether the trainer or this node's engine has the shared GPUs."""
    return _file(plan, "turn.json")


def worker_name(plan: Plan) -> str:
    return f"{plan.run_id}/{plan.node}"


def check_engine(plan: Plan, environ: Mapping[str, str]) -> None:
    """Check for an engine. Raises RetryLater if this node's worker has ended and the pool has no engine.

    Requests would wait for one in vain: who starts it is waiting for them.
    """
    worker = next(
        (group for group in read_groups(plan.groups_dir(pid_space())) if group.name == "vllm"), None
    )
    if worker is None or worker.leader.is_running:
        return
    url, status = ask_manager(plan, environ, "/status")
    if not status["engines"]:
        raise RetryLater(
            f"{url}: this node's worker (process {worker.leader.pid}) is dead, so the pool has no engine"
        )


def probe(plan: Plan, environ: Mapping[str, str]) -> Probe:
    """Return the state of this node's engine in the pool, or of any engine if this node starts none."""
    try:
        url, status = ask_manager(plan, environ, "/status")
    except RetryLater as error:
        return Probe(Answer.NOTHING, str(error))
    model = engines_model(plan)
    if status["weight_version"] < model.weight_version:
        words = f"the pool is at weight version {status['weight_version']}, not yet at {model.weight_version}"
        return Probe(Answer.NOT_READY, f"{url}: {words}")
    return judge_engines(plan, url, status)


def judge_engines(plan: Plan, url: str, status: Mapping[str, Any]) -> Probe:
    engines = status["engines"]
    if plan.takes_turns and plan.is_master:
        turn = TurnFiles(turn_file(plan)).read_engine()
        if turn is not None and turn.has_served and not turn.is_awake:
            return Probe(Answer.WANTED, f"{url}: the engine of {plan.node} sleeps while the trainer trains")
    if plan.config.pool.local_engine:
        engines = [engine for engine in engines if engine["name"] == worker_name(plan)]
    if not engines:
        return Probe(Answer.NOTHING, f"{url}: no engine of {plan.node} has joined")
    ready = [engine for engine in engines if engine["state"] == "ready"]
    if not ready:
        row = engines[0]
        return Probe(Answer.NOT_READY, f"{url}: {row['name']} is {row['state']} {row['reason']}".rstrip())
    version = ready[0]["weight_version"]
    names = ", ".join(str(engine["name"]) for engine in ready)
    return Probe(Answer.WANTED, f"{url}: {names} ready (weight version {version})", version)


def probe_manager(plan: Plan, environ: Mapping[str, str]) -> Probe:
    try:
        url, _ = ask_manager(plan, environ, "/status")
    except RetryLater as error:
        return Probe(Answer.NOTHING, str(error))
    return Probe(Answer.WANTED, f"the pool's manager listens at {url}")


def want_newest(plan: Plan, environ: Mapping[str, str]) -> None:
    """Let the pool serve the run's newest model, unless newer weights were published to it.

    Raises RetryLater if the manager does not answer.
    """
    model = engines_model(plan)
    _, status = ask_manager(plan, environ, "/status")
    is_ahead = status["weights_digest"] is not None and status["weight_version"] >= model.weight_version
    if is_ahead or (status["model"], status["weight_version"]) == (model.path, model.weight_version):
        return
    is_rollback = model.weight_version < status["weight_version"]
    body = {"model": model.path, "weight_version": model.weight_version, "is_rollback": is_rollback}
    ask_manager(plan, environ, "/model", body)
