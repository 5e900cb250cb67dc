"""The pool's `/v1` beside a real vLLM's: the same requests, and every field of what comes back compared."""

import json
from typing import Any

import pytest

from tests.integration.pool.test_vllm import SLOW
from tests.support.pool_setup import Client, manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
PROMPT = {"prompt": "What is 2 + 2?", "temperature": 0, "max_tokens": 6}
IDS = PROMPT | {"prompt": [20, 30, 40]}
MESSAGES = [{"role": "user", "content": "What is 1 + 1?"}]
CHAT_PROMPT = {"messages": MESSAGES, "temperature": 0, "max_tokens": 6}
NUMBER = {"type": "integer", "minimum": 10, "maximum": 99}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": NUMBER}}}
BEGUN = [*MESSAGES, {"role": "assistant", "content": "It is"}]
USAGE = {"stream_options": {"include_usage": True}}
WHOLE = {
    "text": (COMPLETIONS, PROMPT),
    "ids": (COMPLETIONS, IDS | {"return_token_ids": True}),
    "logprobs": (COMPLETIONS, IDS | {"logprobs": 0}),
    "logprobs and ids": (COMPLETIONS, IDS | {"logprobs": 0, "return_token_ids": True, "max_tokens": 20}),
    "named by id": (COMPLETIONS, IDS | {"logprobs": 0, "return_tokens_as_token_ids": True}),
    "two": (COMPLETIONS, IDS | {"n": 2, "temperature": 1.0, "seed": 3, "logprobs": 0}),
    "texts": (COMPLETIONS, PROMPT | {"prompt": ["What is 2 + 2?", "Why?"], "return_token_ids": True}),
    "lists": (COMPLETIONS, IDS | {"prompt": [[20, 30], [40]], "n": 2, "temperature": 1.0, "seed": 3}),
    "stop": (COMPLETIONS, IDS | {"stop": ["T"], "max_tokens": 30, "return_token_ids": True}),
    "stop kept": (COMPLETIONS, IDS | {"stop": ["T"], "max_tokens": 30, "include_stop_str_in_output": True}),
    "stop token": (COMPLETIONS, IDS | {"stop_token_ids": [54], "max_tokens": 30, "return_token_ids": True}),
    "stop token kept": (
        COMPLETIONS,
        IDS | {"stop_token_ids": [54], "max_tokens": 30, "include_stop_str_in_output": True},
    ),
    "special tokens": (COMPLETIONS, IDS | {"skip_special_tokens": False, "logit_bias": {"0": 100}}),
    "no special tokens": (COMPLETIONS, IDS | {"logit_bias": {"0": 100}}),
    "no begin": (COMPLETIONS, PROMPT | {"add_special_tokens": False, "return_token_ids": True}),
    "named": (COMPLETIONS, PROMPT | {"request_id": "mine"}),
    "no length": (COMPLETIONS, {"prompt": [20, 30, 40], "temperature": 0, "return_token_ids": True}),
    "defaults": (COMPLETIONS, PROMPT | {"stream": None, "stop": None, "user": "me", "top_p": None}),
    "chat": (CHATS, CHAT_PROMPT),
    "chat ids": (CHATS, CHAT_PROMPT | {"return_token_ids": True}),
    "chat logprobs": (CHATS, CHAT_PROMPT | {"logprobs": True, "return_token_ids": True}),
    "chat named by id": (CHATS, CHAT_PROMPT | {"logprobs": True, "return_tokens_as_token_ids": True}),
    "chat stop": (CHATS, CHAT_PROMPT | {"stop": ["e"], "max_tokens": 30}),
    "chat two": (CHATS, CHAT_PROMPT | {"n": 2, "temperature": 1.0, "seed": 3, "logprobs": True}),
    "chat goes on": (
        CHATS,
        CHAT_PROMPT | {"messages": BEGUN, "add_generation_prompt": False, "continue_final_message": True},
    ),
    "chat of the user": (CHATS, CHAT_PROMPT | {"add_generation_prompt": False}),
    "chat to its end": (CHATS, {"messages": MESSAGES, "temperature": 0}),
    "chat object": (CHATS, CHAT_PROMPT | {"response_format": {"type": "json_object"}}),
    "chat schema": (CHATS, CHAT_PROMPT | SCHEMA | {"logprobs": True}),
    "chat schemas": (CHATS, CHAT_PROMPT | SCHEMA | {"n": 2, "temperature": 1.0, "seed": 3}),
    "chat choice": (CHATS, CHAT_PROMPT | {"structured_outputs": {"choice": ["yes", "no"]}}),
    "chat truncated": (CHATS, CHAT_PROMPT | {"truncate_prompt_tokens": 10, "return_token_ids": True}),
}
STREAMED = {
    "text": (COMPLETIONS, IDS),
    "usage": (COMPLETIONS, IDS | USAGE),
    "ids": (COMPLETIONS, IDS | USAGE | {"logprobs": 0, "return_token_ids": True}),
    "interval": (COMPLETIONS, IDS | {"stream_interval": 4, "max_tokens": 20, "return_token_ids": True}),
    "stop": (COMPLETIONS, IDS | {"stop": ["T"], "max_tokens": 30, "return_token_ids": True}),
    "stop kept": (
        COMPLETIONS,
        IDS | {"stop": ["no such words"], "include_stop_str_in_output": True, "logprobs": 0},
    ),
    "chat": (CHATS, CHAT_PROMPT),
    "chat usage": (CHATS, CHAT_PROMPT | USAGE),
    "chat ids": (CHATS, CHAT_PROMPT | USAGE | {"logprobs": True, "return_token_ids": True}),
    "chat stop": (CHATS, CHAT_PROMPT | {"stop": ["e"], "max_tokens": 30, "return_token_ids": True}),
    "chat schema": (CHATS, CHAT_PROMPT | SCHEMA | {"return_token_ids": True}),
}
WRONG = {
    "model": (COMPLETIONS, PROMPT | {"model": "nothing"}),
    "chat model": (CHATS, CHAT_PROMPT | {"model": "nothing"}),
    "options without a stream": (COMPLETIONS, PROMPT | USAGE),
    "no prompt": (COMPLETIONS, {"max_tokens": 3}),
    "empty prompt": (COMPLETIONS, {"prompt": ""}),
    "no tokens": (COMPLETIONS, PROMPT | {"max_tokens": 0}),
    "no response": (COMPLETIONS, PROMPT | {"n": 0}),
    "temperature": (COMPLETIONS, PROMPT | {"temperature": -1}),
    "word for a number": (COMPLETIONS, PROMPT | {"temperature": "hot"}),
    "negative logprobs": (COMPLETIONS, PROMPT | {"logprobs": -1}),
    "suffix": (COMPLETIONS, PROMPT | {"suffix": "b"}),
    "long prompt": (COMPLETIONS, PROMPT | {"prompt": [20] * 300}),
    "long response": (COMPLETIONS, PROMPT | {"prompt": [20] * 250, "max_tokens": 20}),
    "no messages": (CHATS, {"max_tokens": 3}),
    "empty messages": (CHATS, {"messages": [], "max_tokens": 3}),
    "empty tools": (CHATS, CHAT_PROMPT | {"tools": []}),
    "choice without tools": (CHATS, CHAT_PROMPT | {"tool_choice": "auto"}),
    "format": (CHATS, CHAT_PROMPT | {"response_format": {"type": "xml"}}),
    "schema": (CHATS, CHAT_PROMPT | {"response_format": {"type": "json_schema"}}),
    "forced call without tools": (CHATS, CHAT_PROMPT | {"tool_choice": "required"}),
    "alternatives without logprobs": (CHATS, CHAT_PROMPT | {"top_logprobs": 2}),
}


@pytest.fixture
def url(vllm_server):
    return vllm_server.url


@pytest.fixture
async def pool(url):
    async with manager(*SLOW) as client:
        await client.join_ready(url)
        yield client


async def answered(pool: Client, url: str, path: str, body: dict[str, Any]) -> tuple[int, str, str]:
    # vLLM drops a connection that is idle for 5 s, maybe under the next request.
    async with pool.session.post(url + path, json=body, headers={"Connection": "close"}) as answer:
        return answer.status, answer.content_type, await answer.text()


def comparable(value: Any) -> Any:
    """Leave out what necessarily differs: names, times, the version of one engine, the pool's own fields."""
    if isinstance(value, list):
        return [comparable(element) for element in value]
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if not isinstance(value, dict):
        return value
    others = ("weight_versions", "created", "system_fingerprint")
    kept = {name: comparable(field) for name, field in value.items() if name not in others}
    if isinstance(name := kept.get("id"), str) and not name.endswith("-mine"):
        kept["id"] = name.partition("-")[0]
    return kept


async def alike(pool: Client, url: str, path: str, body: dict[str, Any]) -> tuple[int, str, str]:
    """The status of both answers, which have the same type, and their texts, vLLM's last."""
    (status, kind, text), theirs = [await answered(pool, at, path, body) for at in (pool.url, url)]
    assert (status, kind) == theirs[:2], text
    return status, text, theirs[2]


@pytest.mark.parametrize(("path", "body"), WHOLE.values(), ids=WHOLE)
async def test_a_whole_answer_is_vllms(pool, url, path, body):
    ours, expected = map(json.loads, (await alike(pool, url, path, body))[1:])
    assert ours.keys() == expected.keys()
    assert comparable(ours) == comparable(expected)


def events_of(text: str) -> list[dict[str, Any]]:
    *events, done = [line[6:] for line in text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def kinds(events: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The types of each field's values over all events; how many tokens an event brings says nothing."""
    types: dict[str, set[str]] = {}
    for event in events:
        parts = [("", event), *(("choice.", choice) for choice in event["choices"])]
        parts += [("delta.", choice["delta"]) for choice in event["choices"] if "delta" in choice]
        for where, part in parts:
            for name in part.keys() - {"system_fingerprint", "weight_versions", "choices"}:
                types.setdefault(where + name, set()).add(type(part[name]).__name__)
    return types


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of all events together."""
    choices = [choice for event in events for choice in event["choices"]]
    texts = [each["text"] if "text" in each else each["delta"].get("content", "") for each in choices]
    logprobs = [each["logprobs"] for each in choices if each["logprobs"]]
    return {
        "text": "".join(texts),
        "tokens": [token for each in choices for token in each.get("token_ids") or []],
        "names": [name for each in logprobs for name in each.get("tokens") or each.get("content")],
        "finish": [(each["finish_reason"], each.get("stop_reason")) for each in choices][-1],
        "usage": events[-1].get("usage"),
        "prompts": next(event.get("prompt_token_ids") for event in events),
    }


@pytest.mark.parametrize(("path", "body"), STREAMED.values(), ids=STREAMED)
async def test_every_event_of_a_stream_has_the_fields_of_vllms(pool, url, path, body):
    ours, expected = map(events_of, (await alike(pool, url, path, body | {"stream": True}))[1:])
    of_vllm = kinds(expected)
    assert kinds(ours).keys() == of_vllm.keys()
    assert all(types <= of_vllm[name] for name, types in kinds(ours).items())
    for name, value in comparable(joined(expected)).items():
        if name == "text" and path == CHATS:  # half characters are another's where they come in pieces
            continue
        assert comparable(joined(ours))[name] == value, name
    if "stream_interval" in body:
        sizes = [len(event["choices"][0]["token_ids"]) for event in ours]
        assert all(size >= body["stream_interval"] for size in sizes[1:-1])


@pytest.mark.parametrize(("path", "body"), WRONG.values(), ids=WRONG)
async def test_what_vllm_refuses_the_pool_refuses_with_the_same_body_of_an_error(pool, url, path, body):
    status, *texts = await alike(pool, url, path, body)
    ours, expected = map(json.loads, texts)
    assert ours["error"].keys() == expected["error"].keys()
    assert ours["error"]["code"] == expected["error"]["code"] == status


async def test_the_model_list_has_the_fields_of_vllms(pool, url):
    cards = []
    for at in (pool.url, url):
        async with pool.session.get(at + "/v1/models") as answer:
            cards.append((await answer.json())["data"][0])
    ours, theirs = cards
    assert ours.keys() - {"weight_version"} == theirs.keys()
    assert (ours["id"], ours["max_model_len"]) == (theirs["id"], theirs["max_model_len"])
