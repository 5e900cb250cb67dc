"""Completions are written as vLLM writes them."""

import json

from rl_agent.pool.api.openai_answers import CompletionEvents, completion_body
from rl_agent.pool.scheduler.records import Order, Request, RequestId, RequestState, Span
from tests.unit.pool.api.asking import call_of


def response(tokens=3, *, is_over=True) -> Request:
    request = Request(Order(RequestId("run", "r"), (1, 2), 100, {}, 1e9), number=0, submitted_at=0.0)
    request.token_ids.extend(range(10, 10 + tokens))
    request.logprobs.extend([-0.5] * tokens)
    request.names.extend(["a", "bc", "d"][:tokens])
    request.spans.append(Span(0, "engine", 7))
    request.state = RequestState.COMPLETED if is_over else RequestState.RUNNING
    request.finish_reason = "stop" if is_over else ""
    return request


def test_logprobs_have_texts_and_where_they_begin():
    [choice] = json.loads(completion_body(call_of(logprobs=0), "m", [response()], ["abc"]))["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 3],
        "token_logprobs": [-0.5] * 3,
        "tokens": ["a", "bc", "d"],
        "top_logprobs": [{"a": -0.5}, {"bc": -0.5}, {"d": -0.5}],
    }
    assert choice["token_ids"] is None and "weight_versions" not in choice


def test_who_wants_no_text_gets_no_names_but_every_logprob():
    body = call_of(logprobs=0, return_token_ids=True, detokenize=False)
    [choice] = json.loads(completion_body(body, "m", [response()], [""]))["choices"]
    assert choice["logprobs"]["tokens"] == choice["logprobs"]["text_offset"] == []
    assert len(choice["logprobs"]["token_logprobs"]) == 3
    assert choice["weight_versions"] == [{"start": 0, "engine_id": "engine", "weight_version": 7}]


def test_responses_to_several_prompts_count_each_prompt_once():
    ended = [response(), response(), response(), response()]
    body = json.loads(completion_body(call_of(prompt=[[1, 2], [1, 2]], n=2), "m", ended, ["a"] * 4))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (4, 12)


def read(written: bytes) -> list[dict]:
    return [json.loads(line[6:]) for line in written.split(b"\n\n") if line[6:7] == b"{"]


def test_streamed_usage_comes_in_the_last_event():
    for options, places in (
        ({}, []),
        ({"include_usage": True}, [2]),
    ):
        body = call_of(stream=True, stream_options=options, request_id="mine", return_token_ids=True)
        events = CompletionEvents(body, "m", (1, 2))
        begun = response(1, is_over=False)
        begun.texts.append("a")
        written = events.grown(begun) + events.end(response(), "abcd")
        assert written.endswith(b"data: [DONE]\n\n")
        events_read = read(written)
        assert [at for at, event in enumerate(events_read) if "usage" in event] == places
        assert {event["id"] for event in events_read} == {"cmpl-mine"}
        if places:
            assert events_read[-1]["choices"] == [] and events_read[-1]["usage"]["completion_tokens"] == 3
        prompts = [event["choices"][0]["prompt_token_ids"] for event in events_read if event["choices"]]
        assert prompts == [[1, 2], None]
