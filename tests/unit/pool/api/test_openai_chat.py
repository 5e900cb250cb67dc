"""A chat in pieces: what may be shown while it grows, and what clients of OpenAI expect of the events."""

import json
from itertools import pairwise

import pytest

from rl_agent.pool.api.openai_chat import ChatEvents, cut_at_stop, message_of
from rl_agent.pool.api.openai_schemas import ChatCall, read_call
from rl_agent.pool.scheduler.records import Order, Request, RequestId, RequestState


def response(tokens: int = 0, *, is_over: bool = False) -> Request:
    order = Order(RequestId("run", "r"), (1, 2), 4096, {}, 1e9)
    request = Request(order, number=0, submitted_at=0.0, state=RequestState.RUNNING)
    grow(request, tokens, is_over=is_over)
    return request


def grow(request: Request, tokens: int, *, is_over: bool = False) -> None:
    request.names.extend(f"\u00e9{number}" for number in range(len(request.token_ids), tokens))
    request.token_ids.extend(range(len(request.token_ids), tokens))
    request.logprobs.extend([-0.5] * (tokens - len(request.logprobs)))
    if is_over:
        request.state, request.finish_reason = RequestState.COMPLETED, "stop"


def events_of(*, has_tools: bool = False, **body: object) -> ChatEvents:
    messages = [{"role": "user", "content": "Hello"}]
    call = read_call({"messages": messages, "stream": True, **body}, ChatCall)
    return ChatEvents(call, "model", (1, 2), has_tools=has_tools)


def read(written: bytes) -> list[dict]:
    lines = [line[6:] for line in written.split(b"\n\n") if line]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def play(*contents: str, has_tools: bool = False, last: dict | None = None, **body: object) -> list[dict]:
    """The events of a response whose content was seen as these, one token more each time; the last is all."""
    events, request, written = events_of(has_tools=has_tools, **body), response(), b""
    for tokens, content in enumerate(contents[:-1], start=1):
        grow(request, tokens)
        written += events.piece(request, {"content": content}, tokens)
    grow(request, len(contents), is_over=True)
    written += events.end(request, {"content": contents[-1]} | (last or {}))
    assert written.endswith(b"data: [DONE]\n\n")
    return read(written)


def pieces_of(events: list[dict]) -> list[str]:
    deltas = [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
    return [delta for delta in deltas if delta]


def test_the_role_comes_first_then_pieces_then_the_finish():
    events = play("One", "One two", "One two three")
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert pieces_of(events) == ["One", " two", " three"]
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * 3 + ["stop"]
    assert len({event["id"] for event in events}) == 1


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, [None] * 4),
        ({"include_usage": True}, [None, None, None, None, 3]),
    ],
)
def test_usage_comes_last_and_alone_if_it_is_asked_for(options, counts):
    events = play("One", "One two", "One two three", stream_options=options)
    usages = [event.get("usage") for event in events]
    assert [usage and usage["completion_tokens"] for usage in usages] == counts
    assert {usage["prompt_tokens"] for usage in usages if usage} <= {2}
    assert (events[-1]["choices"] == []) is ("include_usage" in options)


def shown_at(events: ChatEvents, sizes: range) -> list[int]:
    """The sizes at which a growing response is worth showing."""
    shown = []
    for tokens in sizes:
        request = response(tokens)
        if events.is_worth_showing(request):
            shown.append(tokens)
            events.piece(request, {"content": "x" * tokens}, tokens)
    return shown


def test_events_are_as_long_as_was_asked_for_but_for_the_first():
    shown = shown_at(events_of(stream_interval=100), range(1, 1000))
    assert shown[0] == 1 and min(b - a for a, b in pairwise(shown)) >= 100


def test_every_token_is_in_exactly_one_event():
    events = play("a", "a", "a b", "a b c", return_token_ids=True, logprobs=True)
    tokens = [t for event in events for t in event["choices"][0].get("token_ids", [])]
    logprobs = [event["choices"][0]["logprobs"] or {"content": []} for event in events]
    content = [entry for event in logprobs for entry in event["content"]]
    assert tokens == [0, 1, 2, 3]
    assert [entry["token"] for entry in content] == [f"\u00e9{number}" for number in range(4)]
    assert content[0]["bytes"] == [0xC3, 0xA9, ord("0")] and content[0]["top_logprobs"] == []
    assert events[0]["prompt_token_ids"] == [1, 2]


def test_tokens_are_named_by_id_on_request_and_keep_their_bytes():
    events = play("a", "a b", logprobs=True, return_tokens_as_token_ids=True)
    content = [entry for event in events[1:] for entry in event["choices"][0]["logprobs"]["content"]]
    assert [entry["token"] for entry in content] == ["token_id:0", "token_id:1"]
    assert content[1]["bytes"] == [0xC3, 0xA9, ord("1")]


@pytest.mark.parametrize(
    ("contents", "body", "pieces"),
    [
        (("Hi \ufffd", "Hi \u00e9"), {}, ["Hi", " \u00e9"]),
        (("Hi\n\n", "Hi"), {}, ["Hi"]),
        (("One EN", "One EN two"), {"stop": ["END"]}, ["One", " EN two"]),
        (("E", "EN"), {"stop": ["ENDE"]}, ["EN"]),
        (("One EN", "One END"), {"stop": ["END"], "include_stop_str_in_output": True}, ["One EN", "D"]),
        (("Look: <tool", "Look:"), {"has_tools": True}, ["Look:"]),
        (('{"name": "f"', ""), {"has_tools": True}, []),
        (("1 < 2", "1 < 2 < 3"), {}, ["1 < 2", " < 3"]),
    ],
    ids=[
        *("half a character", "white space", "stop string", "short", "stop string that is shown"),
        *("tool call", "only a call", "no tools"),
    ],
)
def test_what_the_end_might_change_is_held_back(contents, body, pieces):
    assert pieces_of(play(*contents, **body)) == pieces


def test_reasoning_comes_in_pieces_of_its_own():
    events, request = events_of(), response(1)
    written = events.piece(request, {"reasoning": "So", "content": None}, 1)
    grow(request, 2, is_over=True)
    written += events.end(request, {"reasoning": "So it is", "content": "Yes"})
    deltas = [event["choices"][0]["delta"] for event in read(written)]
    assert deltas[1:] == [{"reasoning": "So"}, {"reasoning": " it is", "content": "Yes"}]


def test_reasoning_shows_no_part_of_what_may_be_a_stop_string():
    events, request = events_of(stop=["17"]), response(1)
    written = events.piece(request, {"reasoning": "So 1", "content": None}, 1)
    grow(request, 2)
    written += events.piece(request, {"reasoning": "So 18", "content": "Yes"}, 2)
    deltas = [event["choices"][0]["delta"] for event in read(written)]
    assert deltas[1:] == [{"reasoning": "So"}, {"reasoning": " 18", "content": "Ye"}]


def test_tool_calls_come_whole_at_the_end():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    events = play("Look: ", "Look: <t", "Look: ", has_tools=True, last={"tool_calls": [call]})
    assert pieces_of(events) == ["Look:", " "]
    assert events[-1]["choices"][0]["delta"]["tool_calls"] == [call | {"index": 0}]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_long_response_is_read_anew_only_when_it_has_grown():
    assert 20 < len(shown_at(events_of(), range(1, 4097, 8))) < 100


@pytest.mark.parametrize(
    ("text", "stop", "after", "keeps", "shown"),
    [
        ("One }} two", "}}", 6, False, "One "),
        ("One }} two", "}}", 4, True, "One }}"),
        ("One }}", "}}", 2, False, "One "),
        ("}}", "}}", 2, False, ""),
        ("it reads otherwise", "}}", 2, False, "it reads otherwise"),
    ],
)
def test_a_text_ends_where_its_stop_string_begins_or_ends(text, stop, after, keeps, shown):
    request = response(1, is_over=True)
    request.stop_reason, request.cut_characters = stop, after
    request.order.params["include_stop_str_in_output"] = keeps
    assert cut_at_stop(text, request) == shown


def test_tool_calls_have_vllm_names_and_partial_characters_are_withheld():
    answer = {"choices": [{"message": {"content": "Hi\ufffd", "tool_calls": [{"id": "7"}, {"id": "8"}]}}]}
    call = read_call({"messages": [{}], "parallel_tool_calls": False}, ChatCall)
    message = message_of(answer, response(1, is_over=True), [0], call)
    assert message["tool_calls"] == [{"id": "chatcmpl-tool-7"}] and message["content"] == "Hi"
