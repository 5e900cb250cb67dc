"""Responses that follow a grammar, from a real vLLM whose connections are cut: whole, and of the grammar."""

import json
import re

import pytest

from tests.integration.pool.openai.test_like_vllm import COMPLETIONS, asked, events_of, joined
from tests.integration.pool.test_vllm import SLOW, CuttingProxy
from tests.support.pool_setup import manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]

WORD = "[a-z]{20}-[0-9]{20}"
STRING = {"type": "string", "pattern": f"^{WORD}$"}


@pytest.mark.parametrize("stream", [False, True])
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
async def test_interrupted_grammar_response_begins_anew_and_is_shown_once(vllm_server, grammar, form, stream):
    """What was sampled before a cut is forgotten: the engine's state of the grammar went with it."""
    body = {"prompt": [20, 30, 40], "temperature": 0, "max_tokens": 120, "return_token_ids": True} | grammar
    proxy = CuttingProxy(vllm_server.url, 5, [0] * 4, most_tokens=10)
    async with manager(*SLOW, "max_broken_attempts=100", "stream_interval=1") as pool, proxy.running() as url:
        await pool.join(url)
        await pool.ready(1)
        status, _, text = await asked(pool, pool.url, COMPLETIONS, body | {"stream": stream})
        _, _, alone = await asked(pool, vllm_server.url, COMPLETIONS, body)
    assert status == 200, text
    assert not proxy.cuts, "it was not cut"
    [expected] = json.loads(alone)["choices"]
    if stream:
        whole = joined(events_of(text))
        found = {"text": whole["text"], "token_ids": whole["tokens"], "finish_reason": whole["finish"][0]}
    else:
        [found] = json.loads(text)["choices"]
    assert re.fullmatch(form, found["text"])
    assert {name: expected[name] for name in ("text", "token_ids", "finish_reason")} == {
        name: found[name] for name in ("text", "token_ids", "finish_reason")
    }
