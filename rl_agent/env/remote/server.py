"""An environment server: worker processes of this machine, for clients with the token on others.

    client ─► listener ─► token ─► WebSocket ─► InstanceHost ─► WorkerPool ─► workers
                                   └─ closed, silent for `client_timeout_s`, or no message: its instances go

TERM drains: no new episode begins here, and those that run have `drain_s`. Which classes there are, and the
settings they are made with, this server's configuration says; clients name kinds, and send tasks and actions.
"""

import asyncio
import logging
import ssl
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from rl_agent.env.protocol import Environment
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.env.remote import server_api
from rl_agent.env.remote.host import InstanceHost
from rl_agent.env.remote.outbox import Outbox
from rl_agent.env.remote.placement import WorkerLimits
from rl_agent.env.remote.server_api import CheckAnswer, CheckQuestion, ServerStatus
from rl_agent.env.remote.wire import (
    MAX_FRAME_BYTES,
    MAX_IMAGE_BYTES,
    VERSION,
    Draining,
    Make,
    Seen,
    WireError,
    encode,
    seen_of,
)
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.remote.worker_pool import WorkerPool, open_workers
from rl_agent.errors import ConfigError, EnvironmentRefusal, EnvironmentUnavailable, deliberate
from rl_agent.http.browsers import refusal, served_names
from rl_agent.http.server import HttpListener
from rl_agent.http.tokens import TokenCheck
from rl_agent.types import Observation

log = logging.getLogger(__name__)
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class EnvServerSettings:
    """The options of the command `env-server`."""

    host: str
    port: int
    places: int
    setup: WorkerSetup
    limits: WorkerLimits
    tokens: TokenCheck
    tls: ssl.SSLContext | None
    drain_s: float
    client_timeout_s: float
    login_timeout_s: float = 10.0
    max_connections: int = 4096


class EnvironmentServer:
    """The clients of a server and their instances."""

    def __init__(self, settings: EnvServerSettings, pool: WorkerPool) -> None:
        self._settings = settings
        self._pool = pool
        self._hosts: dict[InstanceHost, Callable[[bytes], None]] = {}
        self.is_draining = False
        self._names = served_names(settings.host)

    @property
    def used(self) -> int:
        return sum(host.taken for host in self._hosts)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=server_api.MAX_CHECK_BYTES)
        app.add_routes(
            [
                web.get(server_api.HEALTH, self._health),
                web.get(server_api.STATUS, self._status),
                web.post(server_api.CHECK, self._check),
                web.get(server_api.INSTANCES, self._instances),
            ]
        )
        return app

    async def drain(self, limit_s: float) -> None:
        """Take no more episodes, tell all clients, and wait for those that run."""
        self.is_draining = True
        for send in self._hosts.values():
            send(encode(Draining()))
        deadline = asyncio.get_running_loop().time() + limit_s
        while self.used and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        log.info("drained; %d episodes are cancelled", self.used)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path == server_api.HEALTH:
            return await handler(request)
        tokens = self._settings.tokens
        names = None if tokens.is_needed else self._names
        if reason := refusal(request, names, "use its address, or start it with a token"):
            return _error(403, reason)
        if tokens.is_needed and not tokens.is_among(request.headers.get("Authorization", "")):
            return _error(401, "a valid token is needed: Authorization: Bearer TOKEN")
        return await handler(request)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "draining" if self.is_draining else "serving"})

    async def _status(self, request: web.Request) -> web.StreamResponse:
        status = ServerStatus(
            VERSION, self._settings.setup.kinds, self._settings.places, self.used, self.is_draining
        )
        return _json(status)

    async def _check(self, request: web.Request) -> web.StreamResponse:
        try:
            question = msgspec.json.decode(await request.read(), type=CheckQuestion)
        except (msgspec.DecodeError, RecursionError) as error:
            return _error(400, str(error)[:300])
        return _json(await asyncio.to_thread(_check, self._settings.setup, question))

    async def _instances(self, request: web.Request) -> web.StreamResponse:
        connection = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False)
        await connection.prepare(request)
        transport = request.transport
        outbox = Outbox(lambda: transport.abort() if transport is not None else None)
        who = request.remote
        log.info("client %s has connected", who)
        why = "it has closed its connection"
        try:
            async with asyncio.TaskGroup() as jobs:
                host = InstanceHost(
                    self._make,
                    outbox.put,
                    jobs,
                    show=with_contents,
                    has_room=lambda: not self.is_draining and self.used < self._settings.places,
                )
                self._hosts[host] = outbox.put
                writing = jobs.create_task(outbox.run(connection.send_bytes), name="write")
                try:
                    if self.is_draining:
                        outbox.put(encode(Draining()))
                    await self._read(connection, host)
                except WireError as error:
                    why = f"it sent {error}"
                except TimeoutError:
                    why = f"it has been silent for {self._settings.client_timeout_s:g} s"
                finally:
                    writing.cancel()
                    number = host.taken
                    await self._close(host)
        except* (ConnectionError, RuntimeError) as group:  # what a cut connection makes of a write
            log.debug("client %s: %s", who, deliberate(group))
        log.info("client %s is lost with %d episodes: %s", who, number, why)
        return connection

    async def _close(self, host: InstanceHost) -> None:
        """Close a client's instances to the end, even if this is cancelled, as when its connection breaks."""
        cancelled: asyncio.CancelledError | None = None
        async with asyncio.TaskGroup() as closing:
            job = closing.create_task(host.close(), name="close")
            while not job.done():
                try:
                    await asyncio.wait([job])
                except asyncio.CancelledError as error:
                    cancelled = error
        del self._hosts[host]
        if cancelled is not None:
            raise cancelled

    async def _read(self, connection: web.WebSocketResponse, host: InstanceHost) -> None:
        while True:
            async with asyncio.timeout(self._settings.client_timeout_s):
                received = await connection.receive()
            if received.type is not WSMsgType.BINARY:
                return
            host.receive(received.data)

    async def _make(self, question: Make) -> Environment:
        if question.kind not in self._settings.setup.kinds:
            raise EnvironmentRefusal(f"this server has no kind {question.kind!r}")
        instance = self._pool.create(question.kind, question.crashes)
        await instance.place()
        return instance


async def with_contents(observation: Observation) -> Seen:
    """Send images as the bytes of their files. Raises EnvironmentRefusal for what is not a file."""
    seen = seen_of(observation)
    if not seen.paths:
        return seen
    return Seen(seen.text, (), await asyncio.to_thread(_contents, seen.paths))


def _contents(paths: tuple[str, ...]) -> tuple[bytes, ...]:
    contents = []
    for name in paths:
        path = Path(name)
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_IMAGE_BYTES:
                raise EnvironmentRefusal(
                    f"its image {name} is not a file of at most {MAX_IMAGE_BYTES:,} bytes"
                )
            contents.append(path.read_bytes())
        except OSError as error:
            raise EnvironmentRefusal(f"its image {name} cannot be read: {error.strerror}") from error
    return tuple(contents)


def _check(setup: WorkerSetup, question: CheckQuestion) -> CheckAnswer:
    """Return the first thing that is wrong with kinds and tasks, for classes of this machine."""
    registry = EnvironmentRegistry(setup)
    try:
        for kind in question.kinds:
            _check_equal(kind, question.kwargs.get(kind, {}), setup.kwargs.get(kind, {}))
        registry.check(question.kinds)
        if asking := [kind for kind in question.kinds if registry.asks(kind)]:
            raise ConfigError(
                f"kinds.{asking[0]}: it runs beside the collector; leave env_config.servers out"
            )
        registry.check_tasks(question.tasks)
    except EnvironmentUnavailable as error:
        return CheckAnswer(str(error)[:2000], is_machines=True)
    except ConfigError as error:
        return CheckAnswer(str(error)[:2000], task_id=getattr(error, "task_id", ""))
    return CheckAnswer()


def _check_equal(kind: str, theirs: dict[str, Any], own: dict[str, Any]) -> None:
    """Raises ConfigError for a setting that the run and this server do not share; tells no value."""
    for key in sorted(theirs.keys() | own.keys()):
        if key not in own or key not in theirs or own[key] != theirs[key]:
            raise ConfigError(f"kwargs.{kind}.{key} differs; give the run and env-server the same")


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _error(status: int, words: str) -> web.Response:
    body = server_api.error_body(status, words)
    return web.Response(status=status, text=body, content_type="application/json")


async def serve(
    settings: EnvServerSettings, on_listening: Callable[[str], None], leaving: asyncio.Event
) -> None:
    """Serve until `leaving` is set, then drain. Raises ConfigError if the address cannot be listened on."""
    listener = HttpListener(
        settings.host,
        settings.port,
        login_timeout_s=settings.login_timeout_s,
        max_connections=settings.max_connections,
        tls=settings.tls,
        error_body=server_api.error_body,
    )
    try:
        async with open_workers(settings.setup, settings.limits) as pool:
            server = EnvironmentServer(settings, pool)
            async with listener.answering(server.application(), stop_timeout_s=1.0):
                on_listening(listener.url)
                await leaving.wait()
                await server.drain(settings.drain_s)
    finally:
        listener.close()
