"""Messages as a server of openenv 0.10 sends them; tests/integration/docs/agents plays at a real one."""

import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.env import openenv
from rl_agent.env.openenv import OpenEnvEnvironment
from rl_agent.errors import EnvironmentFailure
from rl_agent.types import Task

TASK = Task("game-1", "Play.", "openenv", "easy", extra={"reset": {"seed": 7, "level": 2}})
TEXT = {"properties": {"metadata": {"type": "object"}, "move": {"type": "string"}}, "required": ["move"]}
CELL = {"properties": {"metadata": {}, "row": {"type": "integer"}}, "required": ["row"], "type": "object"}
MCP = {"properties": {"tool_name": {"type": "string"}, "arguments": {}}, "required": ["tool_name"]}
ADD = {"name": "add", "title": None, "description": "Add.", "inputSchema": {"type": "object"}}


def result(observation, reward=None, done=False):
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def error(code, **more):
    return {"type": "error", "data": {"message": "it cannot", "code": code} | more}


FULL = error("CAPACITY_REACHED", active_sessions=1, max_sessions=1)
BEGUN = result({"metadata": {"secret": 1}, "board": "...", "legal": ""})


@asynccontextmanager
async def playing(*sessions, form=TEXT, schema=None):
    """An environment at a server that gives its answers session by session, and what it was sent."""
    sent, left = [], [list(answers) for answers in sessions]

    async def session(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for answer in left.pop(0):
            if answer is not FULL:  # which comes unasked
                sent.append((await socket.receive()).json())
            await socket.send_json(answer)
        await socket.close()
        return socket

    async def described(request):
        return schema() if schema else web.json_response({"action": form, "observation": {}})

    async def tools(request):
        assert (await request.json())["method"] == "tools/list"
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": {"tools": [ADD]}})

    app = web.Application()
    app.add_routes([web.get("/ws", session), web.get("/schema", described), web.post("/mcp", tools)])
    async with TestServer(app) as server:
        environment = OpenEnvEnvironment(url=str(server.make_url("/")))
        yield environment, sent
        await environment.close()


def call(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


async def test_a_text_is_the_action_until_the_environment_is_done():
    answers = BEGUN, result({"board": "x..", "left": 2}, 0.25), result({"board": "xx."}, True, done=True)
    async with playing(answers) as (environment, sent):
        first = await environment.reset(TASK, seed=1)
        steps = [await environment.step(text) for text in ('{"name": "a", "arguments": {}}', "b")]

    assert first.text == "Play.\n\n..."
    assert [step.observation.text for step in steps] == ['{"board": "x..", "left": 2}', "xx."]
    assert [(step.reward, step.done) for step in steps] == [(0.25, False), (1, True)]
    assert sent[0] == {"type": "reset", "data": {"seed": 7, "level": 2}}
    assert [message["data"] for message in sent[1:]] == [
        {"move": '{"name": "a", "arguments": {}}'},
        {"move": "b"},
    ]


async def test_tools_of_the_server_are_called_until_a_response_calls_none():
    content = {"content": [{"type": "text", "text": "3"}], "is_error": False}
    answers = BEGUN, result({"tool_name": "add", "result": content, "error": None}, 1.0)
    async with playing(answers, form=MCP) as (environment, sent):
        (tool,) = await OpenEnvEnvironment.tools(TASK, url=environment._url)
        await environment.reset(TASK, seed=1)
        called = await environment.step(call("add", a=1, b=2))
        answered = await environment.step("It is 3.")

    assert tool["function"] == {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
    assert sent[1]["data"] == {"tool_name": "add", "arguments": {"a": 1, "b": 2}}
    assert (called.observation.text, called.reward, called.done) == ("3", 1.0, False)
    assert answered.done and not answered.reward


async def test_an_action_of_several_fields_is_one_tool_and_its_errors_are_shown():
    wrong = error("VALIDATION_ERROR", errors=[{"loc": ["row"], "msg": "too large", "type": "x"}])
    async with playing([BEGUN, wrong], form=CELL) as (environment, sent):
        (tool,) = await OpenEnvEnvironment.tools(TASK, url=environment._url)
        await environment.reset(TASK, seed=1)
        refused, silent = await environment.step(call("act", row=9)), await environment.step("no call")

    assert tool["function"]["name"] == "act"
    assert list(tool["function"]["parameters"]["properties"]) == ["row"]
    assert sent[1]["data"] == {"row": 9}
    assert (refused.observation.text, refused.invalid) == ("row: too large", True)
    assert silent.invalid and not silent.done


async def test_a_full_server_is_asked_again_and_then_begins(monkeypatch):
    monkeypatch.setattr(openenv, "_RETRY_S", 0.01)
    async with playing([FULL], [FULL], [BEGUN]) as (environment, _):
        assert (await environment.reset(TASK, seed=1)).text == "Play.\n\n..."


async def test_a_server_that_is_away_too_long_is_named(monkeypatch, caplog):
    monkeypatch.setattr(openenv, "BEGIN_TIMEOUT_S", 0.0)
    with pytest.raises(EnvironmentFailure, match=r"127.0.0.1:1 began no session within 0 s: .*refused"):
        await OpenEnvEnvironment(url="http://127.0.0.1:1").reset(TASK, seed=1)
    assert "127.0.0.1:1 begins no session yet: ConnectionRefusedError" in caplog.text


@pytest.mark.parametrize(
    "schema",
    [
        lambda: web.Response(status=404),
        lambda: web.Response(text="<html>"),
        lambda: web.json_response([]),
        lambda: web.json_response({"detail": "none"}),
    ],
)
async def test_another_program_at_the_address_is_named_at_once(schema):
    async with playing(schema=schema) as (environment, _):
        with pytest.raises(EnvironmentFailure, match="/schema gives no form of actions"):
            await environment.reset(TASK, seed=1)
        with pytest.raises(EnvironmentFailure, match="/schema gives no form of actions"):
            await OpenEnvEnvironment.tools(TASK, url=environment._url)


async def test_an_action_without_fields_and_no_observation_are_legal():
    async with playing([result(None), result(None, None, None)], form={"type": "object"}) as (environment, _):
        first = await environment.reset(TASK, seed=1)
        step = await environment.step(call("act"))
    assert (first.text, step.observation.text, step.reward) == ("Play.", "", 0.0)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([BEGUN], "hung up in answering step"),
        ([BEGUN, error("EXECUTION_ERROR")], "refused step: it cannot"),
    ],
    ids=["the connection breaks", "the environment fails"],
)
async def test_a_step_without_an_observation_costs_the_attempt(answers, message):
    async with playing(answers) as (environment, _):
        await environment.reset(TASK, seed=1)
        with pytest.raises(EnvironmentFailure, match=message):
            await environment.step("a")


async def test_a_text_environment_has_no_tools_to_call():
    async with playing() as (environment, _):
        with pytest.raises(ValueError, match="action_format=text"):
            await OpenEnvEnvironment.tools(TASK, url=environment._url)


def test_wrong_settings_and_tasks_are_named():
    with pytest.raises(ValueError, match="url is None"):
        OpenEnvEnvironment.check_settings()
    with pytest.raises(ValueError, match="reset is not an object"):
        OpenEnvEnvironment.check_task(Task("t", "Play.", "openenv", "easy", extra={"reset": 7}))
