"""Plays the environment of an OpenEnv server (openenv 0.10), where one WebSocket is one episode.

    reset ─► the prompt, the first observation ─► step(response) ─► observation, reward ─► … ─► done
                  │ the server's form of actions (GET /schema) decides what a response is
                  ├ one text is required     the response is that text
                  ├ a tool's name            it calls a tool of the server (MCP), or ends the episode
                  └ anything else            it calls `act` with what the form asks for

The last two need `policy_config.action_format=tool_calls`. A connection that breaks is a lost attempt: a new
one would be another session.
"""

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import aiohttp

from rl_agent.chat.tool_calls import call_of
from rl_agent.chat.tool_formats import Schema
from rl_agent.env.values import described, recordable
from rl_agent.errors import EnvironmentFailure
from rl_agent.http.client import RequestRefused, request
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Observation, StepResult, Task

log = logging.getLogger(__name__)
BEGIN_TIMEOUT_S = 60.0
"""The time in which a server may start again, or have a place for one more session."""
_RETRY_S = 1.0
_ANSWER_TIMEOUT_S = 20.0
_HEARTBEAT_S = 20.0
_CLOSE_S = 1.0
_LIST_TOOLS = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}'


@dataclass(frozen=True, slots=True)
class _ActionForm:
    """The form of a server's actions: a text, or calls of tools."""

    text_field: str = ""
    tools: list[Schema] = field(default_factory=list)
    is_mcp: bool = False


class _NotNow(Exception):
    """The server is away or full, which may pass."""


class OpenEnvEnvironment:
    """One session at a server; made with `env_config.kwargs.openenv`.

    A server that answers otherwise than openenv 0.10 costs an attempt, whatever error that raises.
    """

    is_cooperative = True

    def __init__(self, *, url: str) -> None:
        self._url = url.rstrip("/")
        self._form = _ActionForm()
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    @staticmethod
    def check_settings(*, url: Any = None) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ValueError(f"url is {url!r}; use the address of an OpenEnv server, http://HOST:PORT")

    @staticmethod
    def check_task(task: Task) -> None:
        if not isinstance(task.extra.get("reset", {}), dict):
            raise ValueError("reset is not an object of arguments")

    @staticmethod
    async def tools(task: Task, *, url: str) -> list[Schema]:
        """Return the server's tools, or its action as one. Raises ValueError where an action is a text."""
        try:
            form = await _form_of(url.rstrip("/"))
        except OSError as error:
            raise EnvironmentFailure(f"{url} cannot be asked: {error}") from error
        if form.text_field:
            raise ValueError(f"none; an action at {url} is a text, so use policy_config.action_format=text")
        return form.tools

    async def reset(self, task: Task, seed: int) -> Observation:
        wanted = {"seed": seed} | task.extra.get("reset", {})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BEGIN_TIMEOUT_S
        await self.close()
        is_waiting = False
        while True:
            try:
                first = self._shown(await self._begin(wanted))
                return Observation("\n\n".join(filter(None, (task.prompt, first))))
            except _NotNow as reason:
                await self.close()
                if reason.__cause__ is not None and not is_waiting:  # a full server is nothing unusual
                    log.warning("%s begins no session yet: %s", self._url, reason)
                    is_waiting = True
                if loop.time() >= deadline:
                    waited = f"{self._url} began no session within {BEGIN_TIMEOUT_S:g} s"
                    raise EnvironmentFailure(f"{waited}: {reason}") from None
                await asyncio.sleep(_RETRY_S)

    async def step(self, action: str) -> StepResult:
        form = self._form
        call = None if form.text_field else call_of(action)
        if form.text_field:
            content: dict[str, Any] = {form.text_field: action}
        elif call is None and form.is_mcp:
            return StepResult(Observation(""), done=True)
        elif call is None:
            return StepResult(Observation("Call act."), changed=False, invalid=True)
        elif form.is_mcp:
            content = {"tool_name": call.name, "arguments": call.arguments}
        else:
            content = call.arguments
        result = await self._answer("step", content)
        seen, is_wrong = Observation(self._shown(result)), "code" in result
        reward, is_over = result.get("reward") or 0.0, result.get("done", False)
        return StepResult(seen, reward, done=is_over, changed=not is_wrong, invalid=is_wrong)

    async def close(self) -> None:
        session, socket, self._session, self._socket = self._session, self._socket, None, None
        if socket is not None:
            await socket.close()
        if session is not None:
            await session.close()

    async def _begin(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self._session = aiohttp.ClientSession()
        try:
            self._form = await _form_of(self._url)
            self._socket = await self._session.ws_connect(
                f"{self._url}/ws", heartbeat=_HEARTBEAT_S, timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S)
            )
        except (aiohttp.ClientError, OSError) as error:
            raise _NotNow(described(error)) from error
        return await self._answer("reset", wanted)

    async def _answer(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Return a result, or the error of a wrong action. Raises _NotNow of a full server."""
        assert self._socket is not None
        with contextlib.suppress(ConnectionError):  # a full server says so before it hangs up
            await self._socket.send_json({"type": kind, "data": content})
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise EnvironmentFailure(f"{self._url} hung up in answering {kind}")
        answer: dict[str, Any] = (await off_loop(len(message.data), json.loads, message.data))["data"]
        code = answer.get("code")
        if code == "CAPACITY_REACHED":
            raise _NotNow(recordable(answer["message"]))
        if code and (code != "VALIDATION_ERROR" or kind == "reset"):
            raise EnvironmentFailure(f"{self._url} refused {kind}: {recordable(answer['message'])}")
        return answer

    def _shown(self, result: dict[str, Any]) -> str:
        """Return a result as the agent sees it: a text alone as it is, else JSON."""
        if "code" in result:
            return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in result["errors"])
        seen = result["observation"] or {}
        if self._form.is_mcp and seen.get("result"):
            return "\n".join(part.get("text", "") for part in seen["result"]["content"])
        seen = {name: value for name, value in seen.items() if name != "metadata" and value not in (None, "")}
        alone = next(iter(seen.values()), "") if len(seen) < 2 else seen
        return alone if isinstance(alone, str) else json.dumps(seen, ensure_ascii=False)


async def _form_of(url: str) -> _ActionForm:
    try:
        form = (await _asked(f"{url}/schema"))["action"]
        fields, required = form.get("properties", {}), form.get("required", [])
    except (RequestRefused, ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, RequestRefused) and error.status != HTTPStatus.NOT_FOUND:
            raise
        raise EnvironmentFailure(
            f"{url}/schema gives no form of actions: is it an OpenEnv server?"
        ) from error
    fields.pop("metadata", None)
    if "tool_name" in fields:
        listed = (await _asked(f"{url}/mcp", _LIST_TOOLS))["result"]["tools"]
        schemas = [_schema(tool["name"], tool["description"], tool["inputSchema"]) for tool in listed]
        return _ActionForm(tools=schemas, is_mcp=True)
    if len(required) == 1 and fields[required[0]].get("type") == "string":
        return _ActionForm(text_field=required[0])
    return _ActionForm(tools=[_schema("act", form.get("description"), form)])


async def _asked(url: str, body: bytes | None = None) -> Any:
    answer = await asyncio.to_thread(request, url, body, timeout_s=_ANSWER_TIMEOUT_S)
    return await off_loop(len(answer), json.loads, answer)


def _schema(name: str, description: str | None, parameters: dict[str, Any]) -> Schema:
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}
