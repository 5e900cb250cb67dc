"""An agent with tools: Python functions, and a real MCP server in a process of its own."""

import json

import pytest

from rl_agent.env.tools.environment import ToolsEnvironment
from tests.unit.env.tools.playing import FUNCTIONS, call, played, task


@pytest.mark.parametrize(("answer", "reward"), [("The sum is 42.", 1.0), ("41", 0.0)])
async def test_tools_are_called_until_an_answer_is_scored_by_the_tasks_verifier(answer, reward):
    called, answered = await played(call("add", a=17, b=25), answer, verifier="math")

    assert (called.observation.text, called.done, called.invalid) == ("42", False, False)
    assert (answered.reward, answered.done) == (reward, True)


async def test_an_async_function_and_a_result_that_is_no_text():
    (called,) = await played(call("later", word="Äther"))

    assert json.loads(called.observation.text) == {"word": "Äther"}


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (call("sub", a=1), "There is no tool 'sub'"),
        (call("add", a=1), "The arguments of add do not fit"),
        (call("add", a="one", b=2), "do not fit (at a)"),
    ],
)
async def test_a_call_that_does_not_fit_is_invalid(action, problem):
    (called,) = await played(action)

    assert called.invalid
    assert problem in called.observation.text


async def test_a_function_that_fails_or_hangs_is_told_to_the_agent():
    failed, interrupted, hung, well = await played(
        call("explode"),
        call("interrupt"),
        call("sleep", seconds=2),
        call("add", a=1, b=2),
        tool_timeout_s=0.2,
    )

    assert interrupted.observation.text == "error: KeyboardInterrupt:"
    assert failed.observation.text == "error: OSError: no fuel"
    assert hung.observation.text == "error: sleep gave no answer within 0.2 s"
    assert well.observation.text == "3"


async def test_a_long_answer_is_cut():
    (called,) = await played(call("shout", times=10_000), max_answer_chars=100)

    assert called.observation.text == "a" * 100 + "\n[cut: 10000 characters]"


async def test_a_task_may_allow_some_of_the_tools():
    (schema,) = await ToolsEnvironment.tools(task(tools=["later"]), functions=FUNCTIONS)

    assert schema["function"]["name"] == "later"
    with pytest.raises(ValueError, match="task t: no tool 'fly'; there are add, sleep"):
        await ToolsEnvironment.tools(task(tools=["fly"]), functions=FUNCTIONS)
