"""An MCP server's tools: a command that speaks on its standard input and output, or a URL.

    start ─► one job owns the connection ─► list tools ─► call, call, … ─► stop ─► its process group is ended
                         │ the server dies, or sends a message that is too long
                         └► every call fails: ServerGone; the next start makes another process

The server is not trusted: starting, listing and every call have a deadline of the caller's, messages are
bounded (behind a URL too, where nothing is inflated), and so is what it writes to standard error; its
environment holds none of our keys, and its processes are a group that is killed with the connection, and by
the kernel if the collector dies.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_agent.chat.tool_formats import Schema
from rl_agent.env.guarded import Guarded
from rl_agent.env.tools.mcp_results import says, text_of
from rl_agent.errors import in_one_line
from rl_agent.http.bounded_answers import PLAIN, bounded
from rl_agent.system.terminal import one_line
from rl_agent.types import writable

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 4 << 20
MAX_TOOLS = 200
MAX_NONSENSE = 100
"""Lines that are not messages, such as prints on standard output, before a server is given up."""
MAX_LOG_BYTES = 64 << 10
STOP_TIMEOUT_S = 2.0
"""A server has this long to end by itself once its input has ended, and as long again after SIGTERM."""


_LINES_AT_ONCE = 64
_READ_BYTES = 16 << 10
_LAST_RESERVED_CODE = -32000
"""Errors above it are an application's own."""


class ServerGone(Exception):
    """The connection to a server of tools is closed, or was never made; the message says why."""


class _Refused(Exception):
    """The server answered a call with an error, which is for the agent to read."""


class ServerPlace(BaseModel):
    """The way to a server, `kwargs.tools.mcp`: a command to start, or the URL of one that runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)
    command: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: Annotated[str, Field(pattern="^(https?://|$)")] = ""
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give command=[program, argument, …] or url=http://…")
        return self

    def __str__(self) -> str:
        return self.url or " ".join(self.command)


class McpServer:
    """One connection to a server; its calls may come from any job of the event loop."""

    def __init__(self, place: ServerPlace) -> None:
        self.place = place
        self._client: Any = None
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._stop = asyncio.Event()
        self._reason = ""

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self._stop.is_set()

    async def start(self) -> None:
        """Connect. Raises ServerGone; the caller sets a deadline, and calls `stop` whatever happens."""
        self._ready = asyncio.get_running_loop().create_future()
        # A connection is closed by the job that opened it: the library's cancel scopes belong to one.
        self._owner = asyncio.get_running_loop().create_task(self._own(), name=f"mcp {self.place}")
        await asyncio.shield(self._ready)

    async def stop(self) -> None:
        """Close the connection and end the server's process group; may be called twice."""
        self._stop.set()
        if self._owner is not None:
            owner, self._owner = self._owner, None
            _, running = await asyncio.wait([owner], timeout=4 * STOP_TIMEOUT_S)
            if running:
                owner.cancel()
                await asyncio.wait([owner], timeout=4 * STOP_TIMEOUT_S)

    async def list_tools(self) -> list[Schema]:
        """Return the schemas of the server's tools. Raises ServerGone."""
        schemas: list[Schema] = []
        cursor = None
        while True:
            page = await self._guarded(self._client.list_tools(cursor=cursor)) if self._client else None
            if page is None:
                raise ServerGone(self._gone())
            schemas += [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description or "",
                        "parameters": tool.input_schema,
                    },
                }
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if len(schemas) > MAX_TOOLS:
                raise ServerGone(f"{self.place} lists more than {MAX_TOOLS} tools")
            if not cursor:
                return schemas

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Return what a tool says, and whether that is an error. Raises ServerGone."""
        if not self.is_open:
            raise ServerGone(self._gone())
        try:
            result = await self._guarded(self._client.call_tool(name, arguments))
        except _Refused as refusal:
            return str(refusal), True
        parts, structured = [text_of(part) for part in result.content], result.structured_content
        if structured is not None and not says(parts, structured):
            parts.append(json.dumps(structured, ensure_ascii=False))
        return writable("\n".join(parts)), bool(result.is_error)

    async def _guarded(self, call: Any) -> Any:
        """Wait for an answer, or for the end of the connection.

        Raises _Refused for an answer about this call alone, and loses the connection for any other error: the
        server may have been started again, and the next episode begins with a new one.
        """
        from mcp import MCPError
        from pydantic import ValidationError

        owner = self._owner
        job = asyncio.get_running_loop().create_task(call)
        try:
            waited = [job, owner] if owner is not None else [job]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                raise ServerGone(self._gone())
            return job.result()
        except MCPError as error:
            reason = " ".join(writable(str(error)).split())[:300]
            if self.is_open and self._is_about_a_call(error.code):
                raise _Refused(reason) from error
            self.lose(reason)
            raise ServerGone(self._gone()) from error
        except (ValidationError, ValueError, RuntimeError) as error:
            raise ServerGone(f"{self.place} answered what is no MCP: {in_one_line(error)}") from error
        finally:
            if not job.done():
                job.cancel()
                with contextlib.suppress(BaseException):
                    await job

    def _is_about_a_call(self, code: int) -> bool:
        """Return whether an error of JSON-RPC is the server's own answer to what an agent asked."""
        from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

        if code == INTERNAL_ERROR:  # behind a URL also what the library makes of a status of 500
            return bool(self.place.command)
        return code == INVALID_PARAMS or code > _LAST_RESERVED_CODE

    def _gone(self) -> str:
        return f"the server of tools {self.place} is gone" + (f": {self._reason}" if self._reason else "")

    async def _own(self) -> None:
        ready = self._ready
        assert ready is not None
        try:
            async with self._connected() as client:
                self._client = client
                if not ready.done():
                    ready.set_result(None)
                await self._stop.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the library groups what it raises, and servers are not trusted
            self._reason = self._reason or _first_line(error)
        finally:
            self._client = None
            if not ready.done():
                ready.set_exception(ServerGone(self._gone()))
                ready.exception()  # whoever waited may have stopped waiting

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        from mcp import Client

        if self.place.command:
            async with Client(_Process(self), mode="legacy") as client:
                yield client
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async with httpx2.AsyncClient(
            headers=PLAIN | self.place.headers,
            timeout=httpx2.Timeout(30.0),
            event_hooks={"response": [bounded(MAX_MESSAGE_BYTES)]},
        ) as http:
            transport = streamable_http_client(
                self.place.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            )
            async with Client(transport, mode="legacy") as client:
                yield client

    def lose(self, reason: str) -> None:
        """Close the connection for a reason that calls are told."""
        self._reason = self._reason or reason
        self._stop.set()


class _Process:
    """The transport to a command: JSON lines, bounded, in a process group of its own."""

    def __init__(self, server: McpServer) -> None:
        self._server = server

    async def __aenter__(self) -> Any:
        import anyio
        from mcp.client.stdio import get_default_environment

        place = self._server.place
        self._guarded = Guarded("rl-agent-tools-", grace_s=STOP_TIMEOUT_S)
        self._process = await asyncio.create_subprocess_exec(
            *self._guarded.words(*place.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=place.cwd,
            env=get_default_environment() | _python_path() | place.env,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        self._to_session, read = anyio.create_memory_object_stream[Any](0)
        write, self._from_session = anyio.create_memory_object_stream[Any](0)
        loop = asyncio.get_running_loop()
        self._jobs = [
            loop.create_task(self._receive(), name="mcp receive"),
            loop.create_task(self._send(), name="mcp send"),
        ]
        self._logging = loop.create_task(self._log(), name="mcp stderr")
        return read, write

    async def __aexit__(self, *_: object) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.wait(self._jobs)
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        await self._guarded.end()
        await self._process.wait()
        await asyncio.wait([self._logging], timeout=STOP_TIMEOUT_S)  # its last words say why it ended
        self._logging.cancel()

    async def _receive(self) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

        assert self._process.stdout is not None
        nonsense = 0
        async with self._to_session:
            for number in itertools.count(1):
                if number % _LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)  # a line that has arrived is read without letting others run
                try:
                    line = await self._process.stdout.readline()
                except ValueError:
                    self._server.lose(f"it sent more than {MAX_MESSAGE_BYTES >> 20} MiB in one message")
                    return
                if not line:
                    self._server.lose("it ended")
                    return
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    if not nonsense:
                        log.warning("%s wrote what is not a message: %.200r", self._server.place, line)
                    nonsense += 1
                    if nonsense > MAX_NONSENSE:
                        self._server.lose(f"it wrote more than {MAX_NONSENSE} lines that are not messages")
                        return
                    continue
                if not isinstance(message, JSONRPCNotification):  # of progress and logs, which nobody reads
                    await self._to_session.send(SessionMessage(message))

    async def _log(self) -> None:
        """Pass on the first `MAX_LOG_BYTES` of standard error; read the rest and leave it out."""
        assert self._process.stderr is not None
        left = MAX_LOG_BYTES
        while piece := await self._process.stderr.read(_READ_BYTES):
            if left > 0:
                left -= len(piece)
                lines = [one_line(line) for line in piece.decode(errors="replace").splitlines()]
                if left <= 0:
                    lines.append(f"{self._server.place} has written much; lines are left out")
                sys.stderr.write("\n".join([*lines, ""]))
            await asyncio.sleep(0)  # what has arrived is read without letting others run

    async def _send(self) -> None:
        assert self._process.stdin is not None
        async with self._from_session:
            async for message in self._from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    self._process.stdin.write(text.encode() + b"\n")
                    await self._process.stdin.drain()
                except OSError:
                    self._server.lose("it takes no more input")
                    return


def _python_path() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}


def _first_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
