"""Text tasks whose agent calls tools until it answers: the answer is scored by the task's verifier.

    reset ─► the prompt ─► step(call) ─► what the tool says ─► … ─► step(text) ─► reward, done
                               │ unknown, wrong arguments    invalid, one line
                               │ raises, says it failed      error: one line
                               └ takes too long              one line

Used with `policy_config.action_format=tool_calls`. The tools are Python functions (`functions`), an MCP
server's (`mcp`), or both; a task may name those that it allows as `tools`.
"""

import asyncio
from typing import Any, ClassVar

from rl_agent.chat.tool_calls import CallChecks, call_of, check_schemas
from rl_agent.chat.tool_formats import Schema, ToolCall
from rl_agent.env.math import MathEnvironment
from rl_agent.env.reasoning_gym import ReasoningGymEnvironment
from rl_agent.env.single_turn import SingleTurnEnvironment
from rl_agent.env.tools.functions import ToolError, load
from rl_agent.env.tools.mcp_server import McpServer, ServerGone, ServerPlace
from rl_agent.env.tools.settings import ToolsSettings, check_here
from rl_agent.env.values import settings_from
from rl_agent.errors import EnvironmentFailure, EnvironmentUnavailable
from rl_agent.types import Observation, StepResult, Task

VERIFIERS: dict[str, type[SingleTurnEnvironment]] = {
    "math": MathEnvironment,
    "reasoning_gym": ReasoningGymEnvironment,
}
START_TIMEOUT_S = 30.0
MAX_HANGS = 3
"""Calls in a row that a shared server may leave unanswered before another one is started."""


class ToolsEnvironment:
    """One agent with tools; made with `env_config.kwargs.tools`.

    `session` "run" shares one connection to the MCP server among all episodes, "episode" gives each its own.
    """

    _shared: ClassVar[dict[str, "_Shared"]] = {}

    def __init__(self, **kwargs: Any) -> None:
        settings = self._settings = settings_from(ToolsSettings, kwargs)
        self._functions = load(settings.functions)
        scored = VERIFIERS.get(settings.verifier)
        self._verifier = (
            scored(verify_timeout_s=settings.verify_timeout_s, workers=settings.workers) if scored else None
        )
        self._server: McpServer | None = None
        self._checks = CallChecks(())
        self._task: Task | None = None

    @staticmethod
    def check_settings(**kwargs: Any) -> None:
        """Raises ValueError for a wrong setting, EnvironmentUnavailable for a program that is not here."""
        try:
            check_here(settings_from(ToolsSettings, kwargs))
        except LookupError as error:
            raise EnvironmentUnavailable(f"env_config.kwargs.tools.{error}") from None

    @staticmethod
    def check_task(task: Task) -> None:
        allowed = task.extra.get("tools")
        if allowed is not None and (
            not isinstance(allowed, list) or not all(isinstance(name, str) for name in allowed)
        ):
            raise ValueError("tools is not a list of names")

    @classmethod
    async def tools(
        cls, task: Task, *, functions: tuple[str, ...] = (), mcp: ServerPlace | dict[str, Any] | None = None
    ) -> list[Schema]:
        """Return the schemas of the functions and of the server's tools that the task allows."""
        schemas = [tool.schema for tool in load(functions).values()]
        if mcp:
            schemas += await cls._shared_of(ServerPlace.model_validate(mcp)).schemas()
        if not schemas:
            raise ValueError("neither functions nor mcp is set in env_config.kwargs.tools")
        allowed = task.extra.get("tools")
        if allowed is None:
            return schemas
        by_name = {schema["function"]["name"]: schema for schema in schemas}
        if missing := [name for name in allowed if name not in by_name]:
            raise ValueError(f"task {task.task_id}: no tool {missing[0]!r}; there are {', '.join(by_name)}")
        return [by_name[name] for name in allowed]

    async def reset(self, task: Task, seed: int) -> Observation:
        await self.close()
        if self._verifier is not None:
            await self._verifier.reset(task, seed)
        settings = self._settings
        schemas = await self.tools(task, functions=settings.functions, mcp=settings.mcp)
        self._checks = CallChecks(check_schemas(schemas))
        if settings.mcp is not None and settings.session == "episode":
            self._server = McpServer(settings.mcp)
            await _start(self._server)
        self._task = task
        return Observation(task.prompt)

    async def step(self, action: str) -> StepResult:
        assert self._task is not None
        call = call_of(action)
        if call is None:
            return await self._answered(action)
        if problem := self._checks.problem_with(call):
            return StepResult(Observation(problem), changed=False, invalid=True)
        answer, most = await self._call(call), self._settings.max_answer_chars
        if len(answer) > most:
            answer = f"{answer[:most]}\n[cut: {len(answer)} characters]"
        return StepResult(Observation(answer))

    async def _answered(self, answer: str) -> StepResult:
        self._task = None
        if self._verifier is None:
            return StepResult(Observation(""), done=True)
        return await self._verifier.step(answer)

    async def _call(self, call: ToolCall) -> str:
        """Return what a tool says, or in one line why it says nothing."""
        function = self._functions.get(call.name)
        place, timeout_s = self._settings.mcp, self._settings.tool_timeout_s
        if function is None and self._server is None and place is not None:
            await self._shared_of(place).open()  # the time that takes is not the tool's
        try:
            async with asyncio.timeout(timeout_s):
                if function is not None:
                    return await function.call(call.arguments)
                answer, is_error = await self._ask_server(call)
        except ToolError as error:
            return _error(str(error))
        except TimeoutError:
            return _error(f"{call.name} gave no answer within {timeout_s:g} s")
        except ServerGone as error:
            raise EnvironmentFailure(f"a tool cannot be called: {error}") from error
        return _error(answer) if is_error else answer

    async def _ask_server(self, call: ToolCall) -> tuple[str, bool]:
        if self._server is not None:
            return await self._server.call(call.name, call.arguments)
        assert self._settings.mcp is not None
        return await self._shared_of(self._settings.mcp).call(call.name, call.arguments)

    @classmethod
    def _shared_of(cls, place: ServerPlace) -> "_Shared":
        key, loop = repr(place), asyncio.get_running_loop()
        shared = cls._shared.get(key)
        if shared is None or shared.loop is not loop:
            shared = cls._shared[key] = _Shared(place)
        return shared

    async def close(self) -> None:
        self._task = None
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()
        if self._verifier is not None:
            await self._verifier.close()

    @classmethod
    async def close_shared(cls) -> None:
        """End the servers that episodes share, and the verifiers' processes."""
        shared = list(cls._shared.values())
        cls._shared.clear()
        for server in shared:
            await server.close()
        for verifier in VERIFIERS.values():
            await verifier.close_shared()


class _Shared:
    """The connection to a server that the episodes of an event loop share, made anew when it is lost."""

    def __init__(self, place: ServerPlace) -> None:
        self.loop = asyncio.get_running_loop()
        self._place = place
        self._server: McpServer | None = None
        self._schemas: list[Schema] | None = None
        self._starting = asyncio.Lock()
        self._hangs = 0

    async def schemas(self) -> list[Schema]:
        """Return what the server lists; it is asked once. Raises EnvironmentFailure."""
        if self._schemas is None:
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    self._schemas = await (await self.open()).list_tools()
            except (ServerGone, TimeoutError) as error:
                reason = str(error) or f"{self._place} lists none within {START_TIMEOUT_S:g} s"
                raise EnvironmentFailure(f"the tools of a server cannot be listed: {reason}") from error
        return self._schemas

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        server = await self.open()
        try:
            answer = await server.call(name, arguments)
        except asyncio.CancelledError:  # the deadline of a call
            self._hangs += 1
            if self._hangs >= MAX_HANGS and self._server is server:
                server.lose(f"it left {MAX_HANGS} calls in a row unanswered")
            raise
        self._hangs = 0
        return answer

    async def close(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()

    async def open(self) -> McpServer:
        """Return an open connection. Raises EnvironmentFailure."""
        async with self._starting:
            if self._server is None or not self._server.is_open:
                await self.close()
                self._hangs = 0
                server = self._server = McpServer(self._place)
                await _start(server)
            return self._server


async def _start(server: McpServer) -> None:
    """Connect, and leave nothing behind if that does not work in time. Raises EnvironmentFailure."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await server.start()
    except (ServerGone, TimeoutError) as error:
        await server.stop()
        reason = str(error) or f"{server.place} is not ready within {START_TIMEOUT_S:g} s"
        raise EnvironmentFailure(f"the server of tools does not start: {reason}") from error
    except BaseException:
        await server.stop()
        raise


def _error(message: str) -> str:
    return f"error: {' '.join(message.split())}"
