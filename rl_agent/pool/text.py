"""The text of a response that was sampled at several engines, or at one that gives none.

An engine decodes only what it sampled itself, so a character whose bytes lie on both sides of a seam would be
lost. Such a response is decoded again, whole, by any engine that can.
"""

import json

from pydantic_core import to_json

from rl_agent.pool.answers import StreamError
from rl_agent.pool.continuation import stop_strings
from rl_agent.pool.records import Request
from rl_agent.pool.service import Pool


async def text_of(request: Request, pool: Pool) -> str:
    """The response as text, without the token that ended it. As sent by the engines if none can decode.

    Empty where nobody needs it.
    """
    if not request.order.needs_text:
        return ""
    sent = "".join(request.texts)
    is_whole = request.moves == 0 and bool(sent)
    if is_whole or not request.token_ids or request.order.params.get("skip_special_tokens"):
        return sent
    if stop_strings(request.order.params) and isinstance(request.stop_reason, str):
        return sent  # cut at the stop string by the machine
    decoded = await _decode(said_tokens(request), pool)
    return sent if decoded is None else decoded


def said_tokens(request: Request) -> list[int]:
    """The response without the token that ended it."""
    tokens = list(request.token_ids)
    is_ended_by_token = request.finish_reason == "stop" and not isinstance(request.stop_reason, str)
    if is_ended_by_token and not request.order.params.get("include_stop_str_in_output"):
        tokens.pop()
    return tokens


async def _decode(token_ids: list[int], pool: Pool) -> str | None:
    link = pool.ready_link()
    if link is None or link.info is None:
        return None
    body = to_json({"model": link.info.served_name, "tokens": token_ids})
    try:
        status, payload = await link.post("/detokenize", body)
        return str(json.loads(payload)["prompt"]) if status == 200 else None
    except (StreamError, ValueError, KeyError):
        return None
