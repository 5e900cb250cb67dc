"""OpenAI's Responses API of the pool beside a real vLLM's, and under OpenAI's Agents SDK.

`RL_AGENT_AGENTS_PYTHON` is a Python with openai-agents, whose pins clash with the lock's.
"""

import asyncio
import json
import os
from itertools import groupby
from typing import Any

import openai
import pytest

from tests.integration.pool.openai.test_like_vllm import NUMBER, answered
from tests.integration.pool.test_vllm import SLOW
from tests.support.pool_setup import manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(600)]

PYTHON = os.environ.get("RL_AGENT_AGENTS_PYTHON", "")
RESPONSES = "/v1/responses"
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
STRICT = TOOL | {"strict": True}
FORMAT = {"type": "json_schema", "name": "a", "schema": NUMBER}
HISTORY = [
    {"role": "developer", "content": [{"type": "input_text", "text": "Add."}]},
    {"role": "user", "content": "1 + 1?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "2"},
]
ASKED = {
    "text": {"input": "no call"},
    "text and call": {"input": "talk", "tools": [TOOL]},
    "calls": {"input": "twice", "tools": [TOOL], "max_output_tokens": 140},
    "strict": {"input": "call", "tools": [STRICT]},
    "required": {"input": "no call", "tools": [STRICT], "tool_choice": "required"},
    "named": {"input": "no call", "tools": [STRICT], "tool_choice": {"type": "function", "name": "add"}},
    "none": {"input": "call", "tools": [TOOL], "tool_choice": "none"},
    "cut": {"input": "talk", "max_output_tokens": 10},
    "schema": {"input": "call", "text": {"format": FORMAT}},
    "object": {"input": "call", "text": {"format": {"type": "json_object"}}},
    "instructions": {"input": [{"role": "user", "content": "call"}], "instructions": "Be brief."},
    "history": {"input": HISTORY, "tools": [TOOL], "temperature": 0},
    "logprobs": {"input": "no call", "include": ["message.output_text.logprobs"]},
}
VLLMS_OWN = {
    *("ec_transfer_params", "kv_transfer_params", "input_messages", "output_messages", "prompt"),
    *("frequency_penalty", "presence_penalty"),
}
"""Fields that OpenAI has not, or no longer, and of which an engine alone knows."""
WRONG = {
    "no input": {},
    "number": {"input": 1},
    "forced without tools": {"input": "a", "tool_choice": "required"},
    "background": {"input": "a", "background": True},
    "template": {"input": "a", "prompt": {"id": "p"}},
    "too long": {"input": "a", "max_output_tokens": 500},
    "schema": {"input": "a", "text": {"format": {"type": "json_schema"}}},
}
AGENT = """
import asyncio
from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled

@function_tool
def add(a: int) -> str:
    return str(a + 1)

set_tracing_disabled(True)
settings = ModelSettings(temperature=0)
agent = Agent("A", tools=[add], model_settings=settings, model="", tool_use_behavior="stop_on_first_tool")

async def main():
    print((await Runner.run(agent, "call")).final_output)
    streamed = Runner.run_streamed(agent, "no call")
    async for _ in streamed.stream_events():
        pass
    print(streamed.final_output)

asyncio.run(main())
"""


@pytest.fixture
async def pool(calling_server):
    async with manager(*SLOW) as client:
        await client.join(calling_server)
        await client.ready(1)
        yield client


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """The parts that do not differ of necessity, as do names, and what only an engine knows."""
    usage = response["usage"]
    counts = {name: usage[name] for name in ("input_tokens", "output_tokens", "total_tokens")}
    kept = ("object", "status", "incomplete_details", "model", "instructions", "parallel_tool_calls")
    items = [item_of(item) for item in response["output"]]
    return {name: response[name] for name in kept} | counts | {"output": items}


def item_of(item: dict[str, Any]) -> dict[str, Any]:
    names = ("type", "role", "status", "name", "arguments")
    kept = {name: item[name] for name in names if item.get(name) is not None}
    texts = [
        (part["text"], [logprob["token"] for logprob in part.get("logprobs") or ()])
        for part in item.get("content") or ()
    ]
    return kept | {"texts": texts}


@pytest.mark.parametrize("fields", ASKED.values(), ids=ASKED)
async def test_a_response_is_vllms_whole_and_streamed(pool, calling_server, fields):
    body = {"temperature": 0, "max_output_tokens": 80} | fields
    ours, theirs = [await answered(pool, url, RESPONSES, body) for url in (pool.url, calling_server)]
    assert ours[:2] == theirs[:2] == (200, "application/json"), (ours[2], theirs[2])
    response, expected = json.loads(ours[2]), json.loads(theirs[2])
    assert response.keys() >= expected.keys() - VLLMS_OWN
    assert comparable(response) == comparable(expected)
    body |= {"stream": True}
    streams = [await answered(pool, url, RESPONSES, body) for url in (pool.url, calling_server)]
    assert [stream[:2] for stream in streams] == [(200, "text/event-stream")] * 2
    events = events_of(streams[0][2])
    assert kinds(events) == kinds(events_of(streams[1][2]))
    assert comparable(events[-1]["response"]) == comparable(response)


def events_of(text: str) -> list[dict[str, Any]]:
    """The data of the events, of which each is named as its data says."""
    lines = [event.split("\n") for event in text.split("\n\n") if event]
    events = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [name for name, _ in lines] == [f"event: {event['type']}" for event in events]
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types of events; how many pieces a text comes in says nothing."""
    return [kind for kind, _ in groupby(event["type"] for event in events)]


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
async def test_a_call_that_vllm_refuses_is_refused_with_its_status(pool, calling_server, fields):
    ours, theirs = [await answered(pool, url, RESPONSES, fields) for url in (pool.url, calling_server)]
    assert ours[0] == theirs[0] == json.loads(ours[2])["error"]["code"] == 400, (ours, theirs)


async def test_openais_client_reads_responses(pool):
    async with openai.AsyncOpenAI(base_url=pool.url + "/v1", api_key="any", max_retries=0) as client:
        whole = await client.responses.create(model="", input="no call", temperature=0)
        tools = [STRICT]
        async with client.responses.stream(model="", input="talk", tools=tools, temperature=0) as stream:
            last = await stream.get_final_response()
        with pytest.raises(openai.BadRequestError, match="no response is kept here"):
            await client.responses.create(model="", input="a", previous_response_id=whole.id)
    assert whole.output_text == "Two, of course."
    assert [item.type for item in last.output] == ["message", "function_call"]


@pytest.mark.skipif(not PYTHON, reason="RL_AGENT_AGENTS_PYTHON names no Python with openai-agents")
async def test_openais_agents_sdk_works_with_its_usual_model(pool):
    variables = os.environ | {"OPENAI_BASE_URL": pool.url + "/v1", "OPENAI_API_KEY": "any"}
    program = await asyncio.create_subprocess_exec(
        PYTHON, "-c", AGENT, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, problems = await program.communicate()
    assert output.decode().splitlines() == ["2", "Two, of course."], problems.decode()
