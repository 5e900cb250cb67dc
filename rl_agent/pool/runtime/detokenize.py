"""Detokenize responses that were sampled at several engines, or at one that returns no text.

An engine decodes only what it sampled itself, so a character whose bytes lie on both sides of a seam would be
lost. Such a response is decoded again, whole, by any engine that can.
"""

from typing import Any

from rl_agent.pool.engines.answers import WrongAnswer
from rl_agent.pool.engines.token_texts import PATH, texts_request
from rl_agent.pool.runtime.engine_questions import ask_now
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler.migration import stop_strings
from rl_agent.pool.scheduler.records import Request


async def text_of(request: Request, pool: Pool) -> str:
    """Return the response as text, without the token that ended it; undecoded if no engine can decode.

    Empty where nobody needs it.
    """
    if not request.order.needs_text:
        return ""
    sent, params = "".join(request.texts), request.order.params
    is_whole = request.moves == 0 and bool(sent)
    if is_whole or not request.token_ids:
        return sent
    if stop_strings(params) and isinstance(request.stop_reason, str):
        return sent  # cut at the stop string by the machine
    decoded = await _decode(response_tokens(request), pool, skips=params.get("skip_special_tokens", True))
    return sent if decoded is None else decoded.rstrip("\ufffd")  # half a character at the end is none


def response_tokens(request: Request) -> list[int]:
    """Return the tokens of the response without the one that ended it."""
    tokens = list(request.token_ids)
    is_ended_by_token = request.finish_reason == "stop" and not isinstance(request.stop_reason, str)
    if is_ended_by_token and not request.order.params.get("include_stop_str_in_output"):
        tokens.pop()
    return tokens


async def _decode(token_ids: list[int], pool: Pool, *, skips: bool) -> str | None:
    """Let an engine decode tokens, with special tokens or without; None if no engine answers."""
    if not skips:
        return await ask_now(pool, "/detokenize", {"tokens": token_ids}, read_text)
    if not token_ids:
        return ""
    body = texts_request([token_ids], skips_special_tokens=True)
    return await ask_now(pool, PATH, body, lambda answer: _text(answer["choices"][0]["text"]))


def read_text(answer: dict[str, Any]) -> str:
    """The text of tokens, out of the answer of `/detokenize`. Raises WrongAnswer."""
    return _text(answer.get("prompt"))


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise WrongAnswer("its answer holds no text")
    return text
