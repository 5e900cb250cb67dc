"""Each field of `/v1` alone, with right and wrong values: the pool and a real vLLM answer alike.

A difference is allowed in one direction: the pool refuses in words what vLLM does, and names the field.
"""

import json
from typing import Any

import pytest

from rl_agent.pool.api.openai_fields import CHAT, COMPLETION, NEVER_NULL
from tests.integration.pool.openai.field_values import CHATS, COMPLETIONS, cases
from tests.integration.pool.openai.test_like_vllm import (
    asked,
    both,  # noqa: F401 - a fixture
    comparable,
    events_of,
    joined,
)

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1800)]

MORE_THAN_VLLM = {("stop", 5)}
"""Documented: up to 64 stop strings."""


def difference(name: str, value: Any, body: dict[str, Any], ours: Any, theirs: Any) -> str:
    """Where the pool says something else than vLLM; empty where it does not, or refuses in words."""
    (status, _, text), (their_status, _, their_text) = ours, theirs
    if status == 400:
        error = json.loads(text)["error"]
        is_named = error["param"] == name or name in error["message"]
        is_refused_too = their_status == 400 or "error" in their_text
        return "" if is_named or is_refused_too else f"refused without its name: {error['message']}"
    if status == 200 != their_status and isinstance(value, list) and (name, len(value)) in MORE_THAN_VLLM:
        return ""
    if status != their_status:
        return f"{status} instead of {their_status}: {text[:200]} {their_text[:200]}"
    is_random = body.get("temperature") != 0
    if status != 200 or is_random:
        return ""
    ours, theirs = (said(one) for one in (text, their_text))
    return "" if ours == comparable(theirs) else f"body: {ours} instead of {theirs}"[:600]


def said(text: str) -> Any:
    """What an answer says; of a stream without the text, whose half characters may come in other pieces."""
    if not text.startswith("data:"):
        return comparable(json.loads(text))
    events = events_of(text)
    if failed := [event["error"]["code"] for event in events if "error" in event]:
        return {"error": failed}
    # Offsets add up the names of one event's tokens; how many come in one event is the pool's own.
    return comparable(
        {name: value for name, value in joined(events).items() if name not in ("text", "offsets")}
    )


@pytest.mark.parametrize("more", [{}, {"stream": True}], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "table"), [(COMPLETIONS, COMPLETION), (CHATS, CHAT)])
async def test_each_value_of_a_field_means_what_it_means_to_vllm_or_is_refused(both, path, table, more):  # noqa: F811
    """One after the other: on a CPU what else is in a batch can change even a greedy response."""
    pool, url = both
    found = dict[str, str]()
    for name, value, single in cases(path, set(table) - set(more)):
        body = single | more
        ours, theirs = [await asked(pool, at, path, body) for at in (pool.url, url)]
        if words := difference(name, value, body, ours, theirs):
            found[f"{name}={value!r}"] = words
    assert not found, "\n".join(f"{case}: {words}" for case, words in found.items())


def test_the_pool_takes_no_null_where_vllm_takes_none():
    from typing import get_args

    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    fields = CompletionRequest.model_fields.items()
    assert {name for name, field in fields if type(None) not in get_args(field.annotation)} == NEVER_NULL
