"""Answers to calls of the Responses API, as OpenAI's own client reads them."""

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from rl_agent.chat.responses_answer import ResponseEvents, whole_response
from rl_agent.chat.responses_call import read_responses_call

BASE = {"id": "chatcmpl-7", "created": 5, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
ENDED = BASE | {"choices": [], "usage": USAGE}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
PROBS = {"content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]}
EVENT = TypeAdapter(ResponseStreamEvent)


def chunk(delta, finish=None, **more):
    return BASE | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish} | more]}


def streamed(*chunks, **fields):
    """The events of a stream, in which two chunks come together."""
    events = ResponseEvents(read_responses_call({"input": "a", "stream": True} | fields))
    sent = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks]
    text = b"".join(map(events.feed, [*sent[:-2], sent[-2] + sent[-1], b"data: [DONE]\n\n"])).decode()
    read = [part.split("\n") for part in text.split("\n\n") if part]
    assert all(name == f"event: {json.loads(data[6:])['type']}" for name, data in read)
    return [json.loads(data[6:]) for _, data in read]


def whole(message, finish="stop", **fields):
    call = read_responses_call({"input": "a"} | fields)
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    body = BASE | {"choices": [choice], "usage": USAGE}
    return Response.model_validate_json(whole_response(call, json.dumps(body).encode()))


def test_events_add_up_to_the_response_that_ends_them():
    role, *deltas = [{"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": "I "}]
    deltas += [{"content": "add."}, {"tool_calls": [CALL | {"index": 0}]}]
    events = streamed(chunk(role), *map(chunk, deltas), chunk({}, "tool_calls"), ENDED)
    for number, event in enumerate(events):
        EVENT.validate_python(event)
        assert event["sequence_number"] == number
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip
    response = events[-1]["response"]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert response["output"] == items
    assert [event["output_index"] for event in events if "item" in event] == [0, 0, 1, 1, 2, 2]
    assert events[0]["response"]["status"] == "in_progress" and not events[0]["response"]["output"]
    read = Response.model_validate(response)
    assert (read.output_text, read.output[0].content[0].text) == ("I add.", "hm")
    assert read.output[2].call_id == "c1"


def test_a_whole_answer_says_what_the_call_asked():
    tool = {"type": "function", "name": "add", "parameters": {}, "strict": False}
    read = whole(
        {"content": None, "reasoning_content": "hm", "tool_calls": [CALL]}, "tool_calls",
        tools=[tool], instructions="do", temperature=0.5, metadata={"a": "b"}, max_output_tokens=9,
    )  # fmt: skip
    assert [item.type for item in read.output] == ["reasoning", "function_call"]
    assert (read.id, read.created_at, read.model, read.status) == ("resp_7", 5, "m", "completed")
    assert (read.usage.input_tokens, read.usage.output_tokens, read.usage.total_tokens) == (3, 4, 7)
    assert (read.tools[0].name, read.instructions, read.temperature) == ("add", "do", 0.5)
    assert (read.metadata, read.max_output_tokens, read.tool_choice) == ({"a": "b"}, 9, "auto")


@pytest.mark.parametrize(("finish", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_a_response_that_was_cut_is_incomplete(finish, status):
    read = whole({"content": "a"}, finish)
    assert (read.status, read.output[0].status) == (status, "completed")
    assert (read.incomplete_details is not None) == (finish == "length")
    [*_, last] = streamed(chunk({"content": "a"}, finish), ENDED)
    assert (last["type"], last["response"]["status"]) == ("response.completed", status)


def test_an_empty_answer_has_no_items():
    assert whole({"content": ""}).output == []


def test_logprobs_are_those_of_the_text():
    chunks = (chunk({"content": "a"}, finish, logprobs=PROBS) for finish in (None, "stop"))
    events = streamed(*chunks, ENDED)
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [PROBS["content"]] * 2
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == PROBS["content"] * 2


def test_a_failure_in_the_middle_is_an_event():
    error = {"message": "no engine", "type": "InternalServerError", "param": None, "code": 504}
    *_, last = streamed(chunk({"content": "a"}), {"error": error})
    EVENT.validate_python(last)
    assert (last["type"], last["code"], last["message"]) == ("error", "504", "no engine")
    assert last["error"] == error
