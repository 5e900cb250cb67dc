"""What becomes of each field of a request to `/v1`: honoured, or refused in words, in vLLM's form."""

import json

import pytest
from aiohttp import web

from rl_agent.pool.api.openai_answers import CompletionEvents, completion_body
from rl_agent.pool.api.openai_fields import CHAT, COMPLETION, NEVER_NULL, OWN
from rl_agent.pool.api.openai_schemas import read_asked
from rl_agent.pool.scheduler.records import Order, Request, RequestId, RequestState, Span

MESSAGES = [{"role": "user", "content": "Hello"}]
OTHER = {
    "prompt_logprobs": 1,
    "logprob_token_ids": [1],
    "repetition_detection": {"max_pattern_size": 3},
    "kv_transfer_params": {"a": 1},
    "ec_transfer_params": {"a": 1},
    "suffix": "b",
    "prompt_embeds": ["AAAA"],
    "truncate_prompt_tokens": 5,
    "truncation_side": "left",
    "structured_outputs": {"json": {}},
    "response_format": {"type": "json_object"},
    "length_penalty": 0.5,
    "priority": 1,
    "top_logprobs": 2,
    "routed_experts_prompt_start": 3,
}
"""Values that ask for something, where it is not just the other of two."""
FORMATS = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
SAMPLING = FORMATS | {"top_p": 0.5, "min_p": 0.1, "logit_bias": {"7": 1.0}, "ignore_eos": True}
OTHER_THAN = {list: [7], bool: False}
"""Values of engines' fields that are not their defaults, by name or by the type of the default."""
REFUSED = [
    (is_chat, name)
    for is_chat, table in ((False, COMPLETION), (True, CHAT))
    for name, field in table.items()
    if field.how == "refused"
]


def asked(*, is_chat: bool = False, **body):
    about = {"messages": MESSAGES} if is_chat else {"prompt": [1, 2]}
    return read_asked(about | body, is_chat=is_chat)


def refused(**body):
    with pytest.raises(web.HTTPException) as caught:
        asked(**body)
    error = json.loads(caught.value.text)["error"]
    assert caught.value.status_code == error["code"] == 400
    assert error["type"] == "BadRequestError"
    return error


@pytest.mark.parametrize(("is_chat", "name"), REFUSED)
def test_a_field_that_is_refused_is_named_and_its_default_asks_for_nothing(is_chat, name):
    table = CHAT if is_chat else COMPLETION
    value = OTHER.get(name, not table[name].default)
    error = refused(is_chat=is_chat, **{name: value})
    assert error["param"] == name and error["message"].startswith(f"{name}=")
    nothing = set() if not is_chat and name in NEVER_NULL else {None}
    for harmless in (*nothing, table[name].default):
        assert name not in asked(is_chat=is_chat, **{name: harmless}).params


@pytest.mark.parametrize("is_chat", [False, True])
def test_engines_get_every_field_that_is_theirs_unless_it_states_the_default(is_chat):
    table = CHAT if is_chat else COMPLETION
    theirs = {name: field for name, field in table.items() if field.how == "engine"}
    stated = asked(is_chat=is_chat, **{name: field.default for name, field in theirs.items()})
    assert stated.params == {"skip_special_tokens": True}
    others = {
        name: SAMPLING.get(name, OTHER_THAN.get(type(field.default), 3)) for name, field in theirs.items()
    }
    found = asked(is_chat=is_chat, **others).params
    assert others.items() <= found.items()


def test_engines_get_no_field_of_the_pool_or_of_a_prompt():
    body = {"n": 2, "user": "me", "model": "m", "return_token_ids": True, "logprobs": 0, "request_id": "r"}
    own = {"timeout_s": 3.0, "group": "g", "episode": "e", "vocab_size": 9, "detokenize": False}
    assert asked(**body, **own, min_weight_version=2).params == {"skip_special_tokens": True}
    chat = {"tools": [{}], "chat_template_kwargs": {}, "reasoning_effort": "low", "documents": []}
    chat |= {"continue_final_message": True, "add_generation_prompt": False, "tool_choice": "auto"}
    assert asked(is_chat=True, **chat).params == {"skip_special_tokens": True}
    assert asked(eos_token_ids=[2], something_new=1).params.keys() >= {"eos_token_ids", "something_new"}
    assert not set(OWN) & (set(COMPLETION) | set(CHAT))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"is_chat": True, "logprobs": 1}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"stream": True, "n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"is_chat": True, "tool_choice": "required"}, "tool_choice"),
        ({"is_chat": True, "tool_choice": {"function": {"name": "f"}}}, "tool_choice"),
        ({"is_chat": True, "tool_choice": None}, "tool_choice"),
        ({"model": 3}, "model"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"return_token_offsets": 2}, "return_token_offsets"),
        ({"user": 3}, "user"),
        ({"n": None}, "n"),
        ({"ignore_eos": None}, "ignore_eos"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"response_format": "json"}, "response_format"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_by_name(body, param):
    assert refused(**body)["param"] == param


def test_two_greedy_responses_are_refused_as_by_vllm():
    assert refused(n=2, temperature=0)["message"] == "n must be 1 when using greedy sampling, got 2."
    assert asked(n=2, temperature=0.5).n == 2


def test_a_chat_has_no_length_of_its_own_and_a_completion_has_openais():
    assert asked(is_chat=True).wanted_tokens is None and asked().wanted_tokens == 16
    assert asked(is_chat=True, max_tokens=5).wanted_tokens == 5
    assert asked(is_chat=True, max_tokens=5, max_completion_tokens=7).wanted_tokens == 7


def test_an_answer_goes_on_in_the_role_of_the_message_that_it_continues():
    said = [*MESSAGES, {"role": "assistant", "content": "It"}]
    assert asked(is_chat=True).role == asked(is_chat=True, messages=said, add_generation_prompt=True).role
    assert asked(is_chat=True, add_generation_prompt=False).role == "user"
    assert asked(is_chat=True, messages=said, add_generation_prompt=False).role == "assistant"


def made(tokens=3, *, is_over=True) -> Request:
    one = Request(Order(RequestId("run", "r"), (1, 2), 100, {}, 1e9), number=0, submitted_at=0.0)
    one.token_ids.extend(range(10, 10 + tokens))
    one.logprobs.extend([-0.5] * tokens)
    one.names.extend(["a", "bc", "d"][:tokens])
    one.spans.append(Span(0, "engine", 7))
    one.state = RequestState.COMPLETED if is_over else RequestState.RUNNING
    one.finish_reason = "stop" if is_over else ""
    return one


def test_logprobs_have_texts_and_where_they_begin():
    [choice] = json.loads(completion_body(asked(logprobs=0), "m", [made()], ["abc"], (1, 2)))["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 3],
        "token_logprobs": [-0.5] * 3,
        "tokens": ["a", "bc", "d"],
        "top_logprobs": [{"a": -0.5}, {"bc": -0.5}, {"d": -0.5}],
    }
    assert choice["token_ids"] is None and "weight_versions" not in choice


def test_who_wants_no_text_gets_no_names_but_every_logprob():
    body = asked(logprobs=0, return_token_ids=True, detokenize=False)
    [choice] = json.loads(completion_body(body, "m", [made()], [""], (1, 2)))["choices"]
    assert choice["logprobs"]["tokens"] == choice["logprobs"]["text_offset"] == []
    assert len(choice["logprobs"]["token_logprobs"]) == 3
    assert choice["weight_versions"] == [{"start": 0, "engine_id": "engine", "weight_version": 7}]


def read(written: bytes) -> list[dict]:
    return [json.loads(line[6:]) for line in written.split(b"\n\n") if line[6:7] == b"{"]


def test_usage_of_a_streamed_completion_comes_in_its_own_last_event_or_in_all():
    for options, places in (
        ({}, []),
        ({"include_usage": True}, [2]),
        ({"include_usage": True, "continuous_usage_stats": True}, [0, 1, 2]),
        ({"continuous_usage_stats": True}, []),
    ):
        body = asked(stream=True, stream_options=options, request_id="mine", return_token_ids=True)
        events = CompletionEvents(body, "m", (1, 2))
        begun = made(1, is_over=False)
        begun.texts.append("a")
        written = events.grown(begun) + events.end(made(), "abcd")
        assert written.endswith(b"data: [DONE]\n\n")
        found = read(written)
        assert [at for at, event in enumerate(found) if "usage" in event] == places
        assert {event["id"] for event in found} == {"cmpl-mine"}
        if places:
            assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] == 3
        prompts = [event["choices"][0]["prompt_token_ids"] for event in found if event["choices"]]
        assert prompts == [[1, 2], None]
