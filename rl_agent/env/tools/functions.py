"""Python functions as tools: a schema from the signature and the docstring, calls in threads.

The MCP SDK makes the schema, so a function is described as an MCP server written with that SDK describes it:
types of the signature, the docstring as description, `Annotated[int, Field(description=…)]` for parameters.
"""

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from rl_agent.chat.tool_formats import Schema
from rl_agent.errors import first_line, in_one_line


class ToolError(Exception):
    """A tool failed; the agent is told the message."""


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that an agent may call."""

    function: Callable[..., Any]
    schema: Schema
    metadata: Any
    """Validates arguments and gives them the types of the signature."""

    async def call(self, arguments: dict[str, Any]) -> str:
        """Call the function in a thread, or an `async` one here. Raises ToolError.

        The deadline is the caller's.
        """
        try:
            kwargs = self.metadata.validate_arguments(arguments)
        except ValueError as error:
            raise ToolError(" ".join(str(error).split())) from None
        try:
            if inspect.iscoroutinefunction(self.function):
                result = await self.function(**kwargs)
            else:
                result = await asyncio.to_thread(self.function, **kwargs)
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # whatever a person's function raises
            raise ToolError(f"{type(error).__name__}: {error}") from error
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


def load(names: Iterable[str]) -> dict[str, FunctionTool]:
    """Import functions by `package.module:function`. Raises ValueError that names the one that is wrong."""
    tools: dict[str, FunctionTool] = {}
    for dotted in names:
        tool = _load(dotted)
        name = tool.schema["function"]["name"]
        if name in tools:
            raise ValueError(f"functions: two are named {name!r}")
        tools[name] = tool
    return tools


@cache
def _load(dotted: str) -> FunctionTool:
    from mcp.server.mcpserver.utilities.func_metadata import func_metadata

    module_name, _, name = str(dotted).partition(":")
    if not (module_name and name):
        raise ValueError(f"functions: {dotted!r} is not of the form package.module:function")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # a module may raise anything while it is imported
        raise ValueError(f"functions: {dotted} cannot be imported: {first_line(error)}") from error
    if not inspect.isroutine(function):
        raise ValueError(f"functions: {dotted} is not a function")
    try:
        metadata = func_metadata(function, structured_output=False)
        parameters = metadata.arg_model.model_json_schema(by_alias=True)
    except Exception as error:  # types that have no schema, parameters without a name
        raise ValueError(f"functions: {dotted} has no schema: {in_one_line(error)}") from error
    description = inspect.getdoc(function)
    if not description:
        raise ValueError(f"functions: {dotted} has no docstring, which tells an agent what it does")
    described = {"name": name, "description": description, "parameters": parameters}
    return FunctionTool(function, {"type": "function", "function": described}, metadata)
