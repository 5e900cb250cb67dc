"""The HTTP side of an environment server: what its clients ask before they connect, in JSON.

GET  /health       no token: whether it serves or drains
GET  /v1/status    its kinds and places
POST /v1/check     whether kinds and tasks are right, and kwargs the server's own; names the first problem
GET  /v1/instances a WebSocket, for the messages of `wire`
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from rl_agent.env.remote.wire import VERSION
from rl_agent.errors import EnvironmentLost
from rl_agent.types import Task

HEALTH, STATUS, CHECK, INSTANCES = "/health", "/v1/status", "/v1/check", "/v1/instances"
MAX_CHECK_BYTES = 8 * 2**20
TOKEN_ENV_VAR = "RL_AGENT_ENV_TOKEN"  # noqa: S105 - the name of a variable
MAX_PLACES = 100_000


class ServerStatus(Struct, frozen=True):
    version: int
    kinds: dict[str, str]
    places: Annotated[int, Meta(ge=1, le=MAX_PLACES)]
    used: Annotated[int, Meta(ge=0)]
    is_draining: bool


class _Versioned(Struct, frozen=True):
    version: int


def read_status(content: bytes) -> ServerStatus:
    """Read the answer to STATUS. Raises msgspec.DecodeError, and EnvironmentLost for another version."""
    version = msgspec.json.decode(content, type=_Versioned).version
    if version != VERSION:
        raise EnvironmentLost(f"it speaks version {version} of the protocol, not {VERSION}")
    return msgspec.json.decode(content, type=ServerStatus)


class CheckQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    kinds: tuple[str, ...]
    kwargs: dict[str, dict[str, Any]]
    """The run's settings of each kind, for comparison: environments are made with the server's."""
    tasks: tuple[Task, ...] = ()


class CheckAnswer(Struct, frozen=True):
    problem: Annotated[str, Meta(max_length=4000)] = ""
    """Empty where all is right."""
    is_machines: bool = False
    """The kind cannot work on that machine, rather than that the configuration is wrong."""
    task_id: str = ""
    """The task that cannot be run, if it is one."""


def error_body(status: int, words: str) -> str:
    """Return the JSON body of an error."""
    return msgspec.json.encode({"error": words, "status": status}).decode()
