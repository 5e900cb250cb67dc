"""Reading what a call brings: so much at most, in so much time, as one of the messages.

A parser holds the event loop until it is done, so its work is bounded: small bodies are parsed whole, the
requests of a run one after the other with a pause for others between them.
"""

import asyncio
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from pydantic import BaseModel, ValidationError

from rl_agent.errors import in_one_line
from rl_agent.pool.problem import problem
from rl_agent.pool.schemas import MAX_PROMPT_TOKENS, RunRequest

T = TypeVar("T", bound=BaseModel)
BODY_TIMEOUT_S = 60.0
SMALL_BYTES = 256 * 1024
"""Messages of engines, trainers and people are far shorter."""
CALL_BYTES = 64 * 1024 * 1024
"""One prompt of the longest context there is, as text or as token ids (16 MiB), or the images of a turn."""
MAX_VALUES = MAX_PROMPT_TOKENS + 100_000
"""The most values in one request; each but the first follows a comma."""
SLICE_BYTES = 256 * 1024
"""Parsed at a stretch, in a few milliseconds."""


async def read_body(request: web.Request, limit: int) -> bytes:
    """Raises web.HTTPException for one that is too long, too slow or breaks off."""
    too_long = f"a body of more than {limit} bytes"
    if (request.content_length or 0) > limit:
        raise problem(413, too_long)
    parts, size = [], 0
    try:
        async with asyncio.timeout(None if request.content.is_eof() else BODY_TIMEOUT_S):
            while part := await request.content.readany():
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise problem(413, too_long)
    except TimeoutError:
        raise problem(408, f"the body did not come within {BODY_TIMEOUT_S:g} s") from None
    except web.RequestPayloadError as error:
        raise problem(400, f"the body cannot be read: {in_one_line(error)}") from None
    return b"".join(parts)


async def read(request: web.Request, model: type[T]) -> T:
    """Read the body as `model`. Raises web.HTTPException."""
    return _parse(await read_body(request, SMALL_BYTES) or b"{}", model)


def read_query(request: web.Request, model: type[T]) -> T:
    """Read the query string as `model`. Raises web.HTTPException."""
    try:
        return model.model_validate(dict(request.query))
    except ValidationError as error:
        raise _refusal(error) from None


async def read_object(request: web.Request) -> dict[str, Any]:
    """Read the body of a call of the OpenAI API, whose keys are its own. Raises web.HTTPException."""
    payload = await read_body(request, CALL_BYTES)
    if payload.count(b",") > MAX_VALUES:
        raise problem(
            413, f"a body of more than {MAX_VALUES} values; a prompt has {MAX_PROMPT_TOKENS} tokens"
        )
    try:
        body = msgspec.json.decode(payload)
    except (ValueError, RecursionError) as error:
        raise problem(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise problem(400, "the body is not a JSON object")
    return body


class _RawRequests(msgspec.Struct, forbid_unknown_fields=True):
    """Requests that are not parsed yet."""

    requests: list[msgspec.Raw]


_RAW_REQUESTS = msgspec.json.Decoder(_RawRequests)


async def read_requests(request: web.Request, *, max_requests: int) -> list[RunRequest]:
    """Read the requests of a run. Raises web.HTTPException."""
    body = await read_body(request, CALL_BYTES)
    try:
        raw = _RAW_REQUESTS.decode(body or b"{}").requests
    except (ValueError, RecursionError) as error:
        raise problem(422, f"body: {error}") from None
    if not 0 < len(raw) <= max_requests:
        raise problem(422, f"requests: there may be 1 to {max_requests}, these are {len(raw)}")
    items, parsed = list[RunRequest](), 0
    for number, payload in enumerate(map(bytes, raw)):
        items.append(_parse(payload, RunRequest, f"requests.{number}."))
        if (parsed := parsed + len(payload)) > SLICE_BYTES:
            parsed = 0
            await asyncio.sleep(0)
    return items


def _parse(payload: bytes, model: type[T], where: str = "") -> T:
    try:
        return model.model_validate_json(payload)
    except ValidationError as error:
        raise _refusal(error, where) from None


def _refusal(error: ValidationError, where: str = "") -> web.HTTPException:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = where + ".".join(str(part)[:100] for part in first["loc"])
    return problem(422, f"{name.rstrip('.') or 'body'}: {first['msg']}")
