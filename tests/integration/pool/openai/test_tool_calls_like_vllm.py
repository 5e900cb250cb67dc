"""Chats with tools through the pool beside a real vLLM's own answers, from a model that calls tools."""

import json
from typing import Any

import pytest

from tests.integration.pool.openai.calling_model import ANSWERS
from tests.integration.pool.openai.test_like_vllm import CHATS, answered, comparable, events_of
from tests.integration.pool.test_vllm import SLOW
from tests.support.pool_setup import manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(600)]

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
NUMBER = {"type": "object", "properties": {"c": {"type": "integer"}}, "required": ["c"]}
STRICT = {"type": "function", "function": {"name": "add", "parameters": NUMBER, "strict": True}}
CHOICES = (
    {},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "add"}}},
)
SAID = [
    *((user, {}) for user in ANSWERS),
    *(("talk", {"stop": [word]}) for word in ("</tool_call>", "}}", "1}", "add.", "\n")),
    *((user, {"stop": ["}}"], "include_stop_str_in_output": True}) for user in ("call", "twice")),
    ("twice", {"parallel_tool_calls": False}),
    ("twice", {"stop": ['"b"']}),
    ("call", {"max_tokens": 20}),
    ("call", {"tool_choice": "none"}),
    ("call", {"tools": None}),
    *((user, {"tools": [STRICT]} | choice) for user in ("call", "no call") for choice in CHOICES),
    ("call", {"tool_choice": "required", "max_tokens": 20}),
    ("call", {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": NUMBER}}}),
]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A call's id is new every time; that it is one of vLLM's kind is all that can be compared."""
    calls = [call | {"id": call["id"].rpartition("-")[0]} for call in message.get("tool_calls") or []]
    return message | ({"tool_calls": calls} if calls else {})


@pytest.mark.parametrize(("user", "more"), SAID, ids=str)
async def test_a_chat_with_tools_is_answered_as_by_vllm(calling_server, user, more):
    """Whole and in a stream, wherever a stop string ends it."""
    body = {"messages": [{"role": "user", "content": user}], "temperature": 0, "tools": [TOOL]} | more
    async with manager(*SLOW) as pool:
        await pool.join_ready(calling_server)
        ours, theirs = [await answered(pool, at, CHATS, body) for at in (pool.url, calling_server)]
        assert ours[0] == theirs[0] == 200, ours
        chat, expected = [json.loads(answer[2]) for answer in (ours, theirs)]
        for answer in (chat, expected):
            for choice in answer["choices"]:
                choice["message"] = without_ids(choice["message"])
        assert comparable(chat) == comparable(expected)
        streamed = events_of((await answered(pool, pool.url, CHATS, body | {"stream": True}))[2])
    [choice] = chat["choices"]
    assert spoken(streamed) == (choice["message"].get("content") or "", choice["finish_reason"])


def spoken(events: list[dict[str, Any]]) -> tuple[str, str]:
    """The content and the finish of a stream."""
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices), choices[-1]["finish_reason"]
