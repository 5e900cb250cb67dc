"""Programs that know nothing of pools, with OpenAI's own client."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.integration.conftest import running_server
from tests.integration.pool.test_vllm import SLOW, CuttingProxy
from tests.integration.runs.tool_model import ANSWER, QUESTION, make_tool_model
from tests.support.pool_setup import Client, manager

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def client_of(pool: Client) -> openai.OpenAI:
    """All that a program is given: an address, and a key."""
    return openai.OpenAI(base_url=pool.url + "/v1", api_key="none", max_retries=0, timeout=120)


def solve(client: openai.OpenAI, question: str, *, is_streaming: bool) -> str:
    """A loop of tool calls as the client's manual has it."""
    model = client.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(4):
        request = {"model": model, "messages": messages, "tools": [TOOL], "temperature": 0, "max_tokens": 80}
        if is_streaming:
            with client.chat.completions.stream(**request) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**request).choices[0].message
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            numbers = json.loads(call.function.arguments)
            result = str(numbers["a"] + numbers["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("it calls tools for ever")


@pytest.fixture(scope="module")
def tool_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    model = make_tool_model(folder / "model")
    with running_server(model, folder / "log", max_num_seqs=4) as plan:
        yield plan.config.engine.base_url


@pytest.mark.extended
@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "streamed"])
async def test_a_program_with_tools_gets_its_answer_despite_cut_streams(tool_server, is_streaming):
    proxy = CuttingProxy(tool_server, 5, [0] * 2)
    async with manager(*SLOW, "stream_interval=1") as pool, proxy.running() as url:
        await pool.join(url)
        await pool.ready(1)
        response = await asyncio.to_thread(solve, client_of(pool), QUESTION, is_streaming=is_streaming)
        assert pool.state.account.moves > 0
    assert response == ANSWER


async def test_openais_client_reads_a_pools_answers_whole_and_streamed(vllm_server):
    async with manager(*SLOW) as pool:
        await pool.join(vllm_server.url)
        await pool.ready(1)
        client = client_of(pool)

        def talk() -> list[str]:
            model = client.models.list().data[0].id
            fields = {"model": model, "max_tokens": 12, "temperature": 0}
            messages = [{"role": "user", "content": "What is 1 + 1?"}]
            whole = client.chat.completions.create(messages=messages, **fields)
            with_usage = {"stream": True, "stream_options": {"include_usage": True}}
            parts = list(client.chat.completions.create(messages=messages, **with_usage, **fields))
            texts = [choice.delta.content or "" for part in parts for choice in part.choices]
            assert whole.usage.completion_tokens == parts[-1].usage.completion_tokens == 12
            text = client.completions.create(prompt="What is 2 + 2?", **fields)
            pieces = client.completions.create(prompt="What is 2 + 2?", stream=True, **fields)
            return [
                *(whole.choices[0].message.content, "".join(texts)),
                *(text.choices[0].text, "".join(piece.choices[0].text for piece in pieces)),
            ]

        whole, streamed, text, pieces = await asyncio.to_thread(talk)
        assert (whole, text) == (streamed, pieces)
        with pytest.raises(openai.BadRequestError, match="echo"):
            await asyncio.to_thread(
                lambda: client.completions.create(model="x", prompt="a", echo=True, max_tokens=1)
            )
