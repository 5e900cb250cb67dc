"""Asks environment servers, before a run starts, whether they are there and can run its tasks."""

import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from rl_agent.config.sections.env import EnvConfig
from rl_agent.env.remote import server_api
from rl_agent.env.remote.server_api import CheckAnswer, CheckQuestion, ServerStatus, read_status
from rl_agent.errors import ConfigError, EnvironmentLost, MachineError, TaskError
from rl_agent.http import client as http_client
from rl_agent.http.tokens import read_tokens
from rl_agent.types import Task

_TIMEOUT_S = 15.0
_CHECK_TIMEOUT_S = 120.0
_TASKS_AT_ONCE = 500
_KEY = "env_config.servers"


def token_of(config: EnvConfig) -> str | None:
    """Return the token for the servers: the first in the file, else the variable. Raises ConfigError."""
    if config.servers_token_file is not None:
        return read_tokens(config.servers_token_file, "env_config.servers_token_file")[0]
    return os.environ.get(server_api.TOKEN_ENV_VAR, "").strip() or None


def check_servers(config: EnvConfig, kinds: Iterable[str], tasks: Sequence[Task]) -> None:
    """Raises ConfigError, or MachineError for a server that is not there, in one line that names it."""
    kind_names, token = sorted(set(kinds)), token_of(config)
    if config.workers:
        raise ConfigError(
            f"env_config.workers={config.workers} cannot be combined with {_KEY}, which moves"
            " environments to servers; start an env-server on this machine, too, or leave one of the two out"
        )
    for url in config.servers:
        _check_kinds(url, _status(url, token), config, kind_names)
    for url in config.servers:
        kwargs = {kind: config.kwargs.get(kind, {}) for kind in kind_names}
        for some in _in_parts(tasks if url == config.servers[0] else ()):
            _check_tasks(url, CheckQuestion(tuple(kind_names), kwargs, some), token)


def _status(url: str, token: str | None) -> ServerStatus:
    content = _ask(url, server_api.STATUS, None, token, _TIMEOUT_S)
    try:
        status = read_status(content)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{_KEY}: {url} is not an environment server: {error}") from error
    except EnvironmentLost as error:
        raise ConfigError(f"{_KEY}: {url}: {error}; start it with the same rl_agent") from error
    if status.is_draining:
        raise MachineError(f"{_KEY}: {url} is draining; start it again, or take it out")
    return status


def _check_kinds(url: str, status: ServerStatus, config: EnvConfig, kind_names: Iterable[str]) -> None:
    for kind in kind_names:
        if kind not in config.kinds:
            raise ConfigError(
                f"env_config.kinds: no environment {kind!r}; there are {', '.join(config.kinds)}"
            )
        here, there = config.kinds[kind], status.kinds.get(kind)
        if there is None:
            names = ", ".join(sorted(status.kinds)) or "none"
            raise ConfigError(
                f"{_KEY}: {url} has no kind {kind!r} (it has {names}); start it with kinds.{kind}={here}"
            )
        if there != here:
            raise ConfigError(f"{_KEY}: {url} has kinds.{kind}={there}, the run {here}; make them equal")


def _check_tasks(url: str, question: CheckQuestion, token: str | None) -> None:
    content = _ask(url, server_api.CHECK, msgspec.json.encode(question), token, _CHECK_TIMEOUT_S)
    try:
        answer = msgspec.json.decode(content, type=CheckAnswer)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{_KEY}: {url} is not an environment server: {error}") from error
    if answer.task_id:
        raise TaskError(f"{_KEY}: {url}: {answer.problem}", answer.task_id)
    if answer.problem:
        kind = MachineError if answer.is_machines else ConfigError
        raise kind(f"{_KEY}: {url}: {answer.problem}")


def _ask(url: str, path: str, body: bytes | None, token: str | None, timeout_s: float) -> bytes:
    try:
        return http_client.request(url.rstrip("/") + path, body, token=token, timeout_s=timeout_s)
    except http_client.RequestRefused as error:
        if error.status == 401:
            raise ConfigError(
                f"{_KEY}: {url} refuses the token; set env_config.servers_token_file, or"
                f" ${server_api.TOKEN_ENV_VAR}, to the one that it was started with"
            ) from error
        raise ConfigError(f"{_KEY}: {url} is not an environment server: it answers {error.status}") from error
    except OSError as error:
        raise MachineError(
            f"{_KEY}: {url} does not answer ({error}); start it with: rl-agent env-server"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{_KEY}: {error}") from error


def _in_parts(tasks: Sequence[Task]) -> Iterator[tuple[Task, ...]]:
    """Give tasks in parts that fit one request; at least one part, for the kinds alone."""
    part, size = list[Task](), 0
    for task in tasks:
        length = len(msgspec.json.encode(task))
        if part and (len(part) == _TASKS_AT_ONCE or size + length > server_api.MAX_CHECK_BYTES // 2):
            yield tuple(part)
            part, size = [], 0
        part.append(task)
        size += length
    yield tuple(part)
