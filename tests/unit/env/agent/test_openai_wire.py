"""Requests for chat completions, and their answers as OpenAI's client reads them."""

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from rl_agent.chat.reply import Reply
from rl_agent.chat.tool_formats import ToolCall
from rl_agent.env.agent.openai_wire import completion, events, read_request, read_responses_request
from rl_agent.env.agent.session import ModelAnswer

MESSAGES = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "add", "strict": True}}
ANSWER = ModelAnswer(
    Reply("I add.", "hm", (ToolCall("add", {"ä": 1}), ToolCall("add", {}))), "tool_calls", 7, 5
)


def request(**fields):
    return read_request(json.dumps({"messages": MESSAGES} | fields).encode())


def test_a_request_keeps_what_a_program_decides():
    read = request(
        model="gpt", tools=[TOOL], tool_choice="required", max_completion_tokens=5, max_tokens=9, stop="x",
        n=2, stream=True, stream_options={"include_usage": True}, temperature=0.1, top_p=1, user="me",
        response_format={"type": "text"}, logprobs=False,
    )  # fmt: skip
    assert read.question.messages == tuple(MESSAGES)
    assert read.question.tools == (TOOL,)
    assert (read.question.max_tokens, read.question.stop, read.question.reads_calls) == (5, ("x",), True)
    assert (read.model, read.choices, read.is_streamed, read.includes_usage) == ("gpt", 2, True, True)
    assert not request(tools=[TOOL], tool_choice="none").question.reads_calls


@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        ({"messages": "a"}, "messages: "),
        ({"response_format": {"type": "json_object"}}, "response_format: "),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs: "),
        ({"logprobs": True}, "logprobs: "),
        ({"functions": [{}]}, "functions: "),
        ({"n": 0.5}, "n: "),
        ({"n": 17}, "n: "),
        ({"max_tokens": -1}, "max_completion_tokens: "),
        ({"stop": [1]}, "stop: "),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\]: "),
        ({"tools": "add"}, r"tools\[0\]: "),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "body: it is not JSON"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_its_field(fields, begin):
    with pytest.raises(ValueError, match=f"^{begin}"):
        request(**fields)


def test_a_call_of_the_responses_api_is_a_question_of_a_chat():
    tool = {"type": "function", "name": "add", "strict": True}
    call = {"input": "a", "model": "gpt", "tools": [tool], "max_output_tokens": 5, "stream": True}
    read = read_responses_request(json.dumps(call).encode())
    assert read.question == request(tools=[TOOL], max_completion_tokens=5).question
    assert (read.model, read.choices, read.is_streamed) == ("gpt", 1, True)
    whole = Response.model_validate_json(completion(read, [ANSWER]))
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    *_, last = [line for event in events(read, [ANSWER]) for line in event.split(b"\n") if line]
    usage = json.loads(last.removeprefix(b"data: "))["response"]["usage"]
    assert usage["total_tokens"] == whole.usage.total_tokens


def test_a_format_of_a_responses_call_is_refused_as_a_chats():
    call = {"input": "a", "text": {"format": {"type": "json_object"}}}
    with pytest.raises(ValueError, match=r"^response_format: .* grammar"):
        read_responses_request(json.dumps(call).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"messages": NaN', b"[" * 10_000])
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(ValueError, match=r"^body: "):
        read_request(body)


def test_openais_client_reads_a_whole_answer():
    read = ChatCompletion.model_validate_json(completion(request(model="gpt"), [ANSWER, ANSWER]))
    choice = read.choices[1]
    message = choice.message
    assert (message.content, message.role, choice.finish_reason) == ("I add.", "assistant", "tool_calls")
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"ä": 1}, {}]
    ids = [call.id for choice in read.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 4
    assert all(len(name) == 9 and name.isalnum() for name in ids)
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (7, 10)


def test_openais_client_reads_a_stream():
    call = request(model="gpt", stream=True, stream_options={"include_usage": True})
    *sent, last = events(call, [ANSWER])
    assert last == b"data: [DONE]\n\n"
    chunks = [ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: ")) for event in sent]
    delta = chunks[0].choices[0].delta
    assert (delta.content, [called.index for called in delta.tool_calls]) == ("I add.", [0, 1])
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices] == [None, "tool_calls"]
    assert chunks[-1].usage.completion_tokens == 5
