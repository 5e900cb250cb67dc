"""Responses that follow a grammar, from a real vLLM whose connections are cut: whole, and of the grammar."""

import json
import re

import pytest

from tests.integration.pool.openai.test_like_vllm import (
    CHATS,
    COMPLETIONS,
    MESSAGES,
    answered,
    events_of,
    joined,
)
from tests.integration.pool.test_vllm import SLOW, CuttingProxy
from tests.support.pool_setup import manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]

WORD = "[a-z]{20}-[0-9]{20}"
STRING = {"type": "string", "pattern": f"^{WORD}$"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "prompt"), [(COMPLETIONS, {"prompt": [20, 30, 40]}), (CHATS, {"messages": MESSAGES})]
)
@pytest.mark.parametrize(
    ("grammar", "form"),
    [
        ({"structured_outputs": {"regex": WORD}}, WORD),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": STRING}}},
            f'"{WORD}"',
        ),
    ],
    ids=["regex", "schema"],
)
async def test_interrupted_grammar_response_begins_anew_and_is_shown_once(
    vllm_server, grammar, form, path, prompt, stream
):
    """Tokens sampled before a cut are forgotten: the engine's state of the grammar went with it."""
    body = prompt | {"temperature": 0, "max_tokens": 120, "return_token_ids": True} | grammar
    proxy = CuttingProxy(vllm_server.url, 5, [0] * 4, most_tokens=10)
    async with manager(*SLOW, "max_broken_attempts=100", "stream_interval=1") as pool, proxy.running() as url:
        await pool.join_ready(url)
        status, _, text = await answered(pool, pool.url, path, body | {"stream": stream})
        _, _, alone = await answered(pool, vllm_server.url, path, body)
        [engine] = pool.state.engines.values()
        assert engine.recomputed_tokens, "no token was thrown away"
    assert status == 200, text
    assert not proxy.cuts, "it was not cut"
    [expected] = map(with_text, json.loads(alone)["choices"])
    if stream:
        whole = joined(events_of(text))
        choice = {"text": whole["text"], "token_ids": whole["tokens"], "finish_reason": whole["finish"][0]}
    else:
        [choice] = map(with_text, json.loads(text)["choices"])
    assert re.fullmatch(form, choice["text"])
    assert {name: expected[name] for name in ("text", "token_ids", "finish_reason")} == {
        name: choice[name] for name in ("text", "token_ids", "finish_reason")
    }


async def test_logprobs_under_a_grammar_are_those_of_the_tokens_it_allows(vllm_server):
    """One token is allowed at each place, which the model alone is far from being sure of."""
    body = {"prompt": [20, 30, 40], "temperature": 1, "logprobs": 0, "structured_outputs": {"choice": ["a"]}}
    async with manager(*SLOW) as pool:
        await pool.join_ready(vllm_server.url)
        _, answer = await pool.call("POST", COMPLETIONS, body)
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx([0.0, 0.0], abs=1e-3)


def with_text(choice: dict) -> dict:
    return choice if "text" in choice else choice | {"text": choice["message"]["content"]}
