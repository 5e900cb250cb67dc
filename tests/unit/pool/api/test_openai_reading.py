"""The prompt of a chat and its grammar, as an engine renders them."""

import json
from types import SimpleNamespace

import pytest
from aiohttp import web

from rl_agent.pool.api.openai_reading import EngineReader
from tests.unit.pool.api.asking import call_of
from tests.unit.pool.asked_engine import AskedLink, AskedPool

CONFIG = SimpleNamespace(request_timeout_s=1.0, heartbeat_s=0.02)

FORM = {"response_format": {"type": "json_object"}}


def reader(rendered) -> EngineReader:
    return EngineReader(CONFIG, AskedPool(AskedLink((200, json.dumps(rendered)))))


@pytest.mark.parametrize(
    ("sampling", "grammar"),
    [
        (
            {"structured_outputs": {"json_object": True, "regex": None, "_backend": "x"}},
            {"structured_outputs": {"json_object": True}},
        ),
        ({"structured_outputs": None}, FORM),
        (None, FORM),
    ],
)
async def test_a_chats_grammar_is_the_one_that_an_engine_makes_of_it(sampling, grammar):
    call = call_of(is_chat=True, temperature=0.5, **FORM)
    rendered = {"token_ids": [1, 2], "sampling_params": sampling}
    assert await reader(rendered).prompt_of_chat({}, call) == ((1, 2), {"temperature": 0.5} | grammar)


@pytest.mark.parametrize("field", [{"tool_choice": "required"}, {"structured_outputs": {"regex": "a"}}])
async def test_a_chat_with_images_takes_no_grammar(field):
    with pytest.raises(web.HTTPException) as refused:
        await reader({}).prompt_with_images({}, call_of(is_chat=True, **field))
    assert json.loads(refused.value.text)["error"]["param"] in field
