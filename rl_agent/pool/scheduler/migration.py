"""Migration: how a response is continued at another engine.

The tokens so far become part of the prompt. Every sampling parameter must mean the same from there:

    max_tokens, min_tokens   less the tokens that exist
    seed                     another one, made from the seed and the position: the same stream of random
                             numbers again would repeat the draws of the first tokens
    stop strings             found here and never sent, since one may lie across the seam; whether the end is
                             part of the text is sent, for the engine finds stop tokens
    repetition_penalty       counts prompt and response alike, so nothing changes
    presence, frequency      count the response only, which an engine cannot be told: begun afresh
    grammars, ...            have a state that an engine cannot be told: begun afresh
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from rl_agent.pool.scheduler.events import Moved
from rl_agent.pool.scheduler.records import Engine, Request

CONTINUABLE = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "eos_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "min_tokens",
        "repetition_penalty",
        "logit_bias",
        "skip_special_tokens",
        "cache_salt",
    }
)
NEUTRAL: dict[str, Any] = {"presence_penalty": 0.0, "frequency_penalty": 0.0}


def can_continue(params: dict[str, Any]) -> bool:
    """Return whether a response can be continued as if it had never been interrupted."""
    return all(
        name in CONTINUABLE or value is None or (name in NEUTRAL and value == NEUTRAL[name])
        for name, value in params.items()
    )


def prompt_of(request: Request) -> list[int]:
    """Return the prompt of the next attempt: the request's prompt and the tokens so far."""
    return [*request.order.prompt_token_ids, *request.token_ids]


def tokens_left(request: Request, max_model_len: int) -> int:
    """Return how many tokens the next attempt may sample; below 1 if none."""
    num_tokens = len(request.token_ids)
    left = request.order.max_tokens - num_tokens
    if max_model_len:
        left = min(left, max_model_len - len(request.order.prompt_token_ids) - num_tokens)
    return left


def params_of(request: Request) -> dict[str, Any]:
    """Return the sampling parameters of the next attempt, without `max_tokens`."""
    num_tokens = len(request.token_ids)
    params = {
        name: value
        for name, value in request.order.params.items()
        if value is not None and name not in ("stop", "eos_token_ids")
    }
    if num_tokens and "seed" in params:
        params["seed"] = continued_seed(params["seed"], num_tokens)
    if num_tokens and "min_tokens" in params:
        params["min_tokens"] = max(0, params["min_tokens"] - num_tokens)
    return params


def continued_seed(seed: int, position: int) -> int:
    """Return the seed for the tokens from `position` on; it depends on nothing else."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def finish_of_tokens(request: Request) -> str:
    """Return `stop` or `length` if the tokens are a whole response, else an empty string."""
    params, tokens = request.order.params, request.token_ids
    if not tokens:
        return ""
    ends = set(params.get("stop_token_ids") or ())
    if not params.get("ignore_eos"):
        ends |= set(params.get("eos_token_ids") or ())
    if tokens[-1] in ends and len(tokens) >= (params.get("min_tokens") or 0):
        return "stop"
    return "length" if len(tokens) >= request.order.max_tokens else ""


def stop_strings(params: dict[str, Any]) -> tuple[str, ...]:
    stop = params.get("stop")
    if not stop:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def find_stop(request: Request, new_text: str) -> str | None:
    """Return the stop string that `new_text` completed, and cut the text there; None if it did not."""
    stops = stop_strings(request.order.params)
    if not stops or len(request.token_ids) < (request.order.params.get("min_tokens") or 0):
        return None
    tail = _last_of(request.texts, len(new_text) + max(map(len, stops)) - 1)
    matches = [(at, stop) for stop in stops if (at := tail.find(stop)) >= 0]
    if not matches:
        return None
    at, stop = min(matches)
    end = at + len(stop) if request.order.params.get("include_stop_str_in_output") else at
    request.cut_characters = len(tail) - end
    text = "".join(request.texts)
    request.texts[:] = [text[: len(text) - request.cut_characters]]
    return stop


def held_back(params: dict[str, Any]) -> int:
    """Return how many of the last characters may be part of a stop string and are not shown yet."""
    if params.get("include_stop_str_in_output"):
        return 0
    return max(map(len, stop_strings(params)), default=1) - 1


def _last_of(texts: Sequence[str], size: int) -> str:
    """Return the last `size` characters, reading as few texts as possible."""
    parts, length = list[str](), 0
    for text in reversed(texts):
        parts.append(text)
        length += len(text)
        if length >= size:
            break
    return "".join(reversed(parts))[-size:]


def note_arrival(request: Request, engine: Engine, now: float) -> Moved | None:
    """Return the move of a request that left an engine, and count what is read again; None for any other."""
    if (left := request.left) is None:
        return None
    request.left, tokens = None, len(request.token_ids)
    engine.prefilled_tokens += len(request.order.prompt_token_ids) + tokens
    return Moved(request.request_id, left.engine, engine.offer.name, tokens, now - left.at, left.reason)
