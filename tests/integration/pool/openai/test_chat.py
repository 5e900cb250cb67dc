"""Chats in pieces through a manager, to OpenAI's own client, from simulated engines that die meanwhile."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.support.pool_setup import Client, expected, manager
from tests.support.pool_world import EOS
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
SPOKEN = 20
"""Tokens before a tool call."""


class ChattingEngine(StreamingEngine):
    """A message says how long the response to it is; with tools, it ends in a call."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/v1/chat/completions/render":
            body = json.loads(await request.read())
            return web.json_response({"token_ids": [int(body["messages"][-1]["content"]), 0, 5, 6]})
        if request.path == "/v1/chat/completions/derender":
            body = json.loads(await request.read())
            choice = body["generate_response"]["choices"][0]
            is_over, has_tools = choice["finish_reason"] is not None, "tools" in body["chat_request"]
            message = message_of(choice["token_ids"], has_tools=has_tools, is_over=is_over)
            return web.json_response({"choices": [{"message": message}]})
        return await super().handle(request)


def message_of(tokens: list[int], *, has_tools: bool, is_over: bool) -> dict:
    """Read tokens as an engine with a parser of tool calls: a half call is text."""
    words = [f"t{token}" for token in tokens]
    if not has_tools or len(words) <= SPOKEN:
        return {"role": "assistant", "content": " ".join(words)}
    spoken = " ".join(words[:SPOKEN])
    if is_over:
        return {"role": "assistant", "content": spoken, "tool_calls": [CALL]}
    return {"role": "assistant", "content": f"{spoken}<tool_call>{' '.join(words[SPOKEN:])}"}


def engine(interval_s: float = 0.0) -> ChattingEngine:
    return ChattingEngine(Behaviour(), interval_s=interval_s, does_as_asked=True)


def client_of(pool: Client) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=pool.url + "/v1", api_key="none", max_retries=0, timeout=60)


async def chat(pool: Client, length: int, extra: dict | None = None, **more) -> AsyncIterator[Any]:
    """The events as OpenAI's own client reads them."""
    messages = [{"role": "user", "content": str(length)}]
    extra = {"stop_token_ids": [EOS], "return_token_ids": True} | (extra or {})
    async with client_of(pool) as client:
        more |= {"model": "simulated", "messages": messages, "stream": True, "extra_body": extra}
        async with await client.chat.completions.create(**more) as stream:
            async for part in stream:
                yield part


async def test_a_chat_arrives_in_pieces_also_when_its_engine_dies_meanwhile():
    async with manager("stall_timeout_s=10") as pool, serving(engine(0.01)) as a, serving(engine()) as b:
        await pool.join_ready(a.url)
        parts = []
        async for part in chat(pool, 4000, stream_options={"include_usage": True}):
            parts.append(part)
            if len(parts) == 3:  # the role and two pieces, of a response that takes 40 s there
                await pool.join(b.url)
                await a.kill()
    *parts, usage = parts
    assert parts[0].choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    tokens = expected(4000, 0)
    content = "".join(part.choices[0].delta.content or "" for part in parts)
    assert content == " ".join(f"t{token}" for token in tokens[:-1])
    assert [t for part in parts for t in getattr(part.choices[0], "token_ids", None) or []] == tokens
    assert usage.choices == [] and usage.usage.completion_tokens == 4000
    assert len(parts[-1].choices[0].weight_versions) == 2


async def test_a_response_arrives_in_pieces_also_when_its_engine_dies_meanwhile():
    async with manager("stall_timeout_s=10") as pool, serving(engine(0.01)) as a, serving(engine()) as b:
        await pool.join_ready(a.url)
        pieces = []
        more = {"model": "simulated", "input": "4000", "extra_body": {"stop_token_ids": [EOS]}}
        async with client_of(pool) as client, client.responses.stream(**more) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
                    if len(pieces) == 2:
                        await pool.join(b.url)
                        await a.kill()
            whole = await stream.get_final_response()
    assert whole.output_text == "".join(pieces) == " ".join(f"t{token}" for token in expected(4000, 0)[:-1])
    assert (whole.status, whole.usage.output_tokens) == ("completed", 4000)


async def test_a_response_that_fails_in_the_middle_says_why():
    async with manager() as pool, serving(engine(0.01)) as a:
        await pool.join_ready(a.url)
        more = {"model": "simulated", "input": "4000", "stream": True, "extra_body": {"timeout_s": 1.0}}
        async with client_of(pool) as client:
            kinds = []
            with pytest.raises(openai.APIError, match="its deadline passed"):
                async for event in await client.responses.create(**more):
                    kinds.append(event.type)
    assert "response.output_text.delta" in kinds and "response.completed" not in kinds


async def test_tool_calls_come_whole_at_the_end_and_no_part_of_them_before():
    async with manager() as pool, serving(engine(0.001)) as a:
        await pool.join_ready(a.url)
        deltas = [part.choices[0].delta async for part in chat(pool, 300, tools=[TOOL])]
        messages = [{"role": "user", "content": "300"}]
        body = {"messages": messages, "tools": [TOOL], "stop_token_ids": [EOS]}
        _, whole = await pool.call("POST", "/v1/chat/completions", body)
    content = "".join(delta.content or "" for delta in deltas)
    assert content == whole["choices"][0]["message"]["content"]
    [calls] = [delta.tool_calls for delta in deltas if delta.tool_calls]
    assert calls[0].function.name == "add"


async def test_a_chat_that_fails_says_why():
    async with manager() as pool, serving(engine(0.01)) as a:
        await pool.join_ready(a.url)
        with pytest.raises(openai.APIError, match="its deadline passed"):
            [part async for part in chat(pool, 4000, {"timeout_s": 1.0})]
        with pytest.raises(openai.BadRequestError, match="a stream has one response"):
            [part async for part in chat(pool, 10, n=2)]


async def test_a_chat_whose_reader_goes_away_is_cancelled():
    async with manager() as pool, serving(engine(0.01)) as a:
        await pool.join_ready(a.url)
        async with aclosing(chat(pool, 4000)) as parts:
            async for part in parts:
                assert part.choices[0].delta.role == "assistant"
                break
        await pool.until(lambda: not pool.runtime.pool.open_requests())
