"""Python functions as tools: their schemas, and those that cannot be one."""

import pytest

from rl_agent.env.tools.environment import ToolsEnvironment
from tests.unit.env.tools.playing import FUNCTIONS, HERE, task


async def test_the_schema_is_that_of_the_signature_and_the_docstring():
    (schema, *_) = await ToolsEnvironment.tools(task(), functions=FUNCTIONS)

    function = schema["function"]
    assert (function["name"], function["description"]) == ("add", "Add two whole numbers.")
    assert function["parameters"]["required"] == ["a", "b"]
    assert function["parameters"]["properties"]["a"]["type"] == "integer"


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        (("add",), "'add' is not of the form package.module:function"),
        (("no.such:add",), "no.such:add cannot be imported: ModuleNotFoundError"),
        ((HERE + "nothing",), "cannot be imported: AttributeError"),
        ((HERE + "FUNCTIONS",), "is not a function"),
        ((HERE + "undescribed",), "has no docstring"),
        ((HERE + "add", HERE + "add"), "two are named 'add'"),
        ((), "neither functions nor mcp is set"),
    ],
)
async def test_functions_that_cannot_be_tools_are_refused(functions, problem):
    with pytest.raises(ValueError, match=problem):
        await ToolsEnvironment.tools(task(), functions=functions)
