"""Responses in the documented wire format of each engine, and a server that gives them."""

import inspect
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.http.kept_connections import KeptConnections
from rl_agent.pool.engines.link import EngineLink, HttpTransport

PIECES = [((11,), "so"), ((12, 13), " it"), ((14,), " goes")]
"""Tokens and text of the events of one response."""
ROUTES = {
    "vllm": ["/v1/completions"],
    "packed": ["/v1/completions", "/v1/packed_tokens"],
    "sglang": ["/generate", "/get_model_info", "/v1/completions"],
}


def vllm(tokens, text, finish, total):
    logprobs = {"token_logprobs": [-token / 8 for token in tokens], "text_offset": list(range(len(tokens)))}
    logprobs |= {"tokens": [f"t{token}" for token in tokens]}
    choice = {"index": 0, "text": text, "token_ids": list(tokens), "logprobs": logprobs}
    choice |= {"finish_reason": finish, "stop_reason": None}
    return {"id": "cmpl-1", "choices": [choice], "usage": {"completion_tokens": total, "prompt_tokens": 3}}


def sglang_incremental(tokens, text, finish, total):
    entries = [[-token / 8, token, f"t{token}"] for token in tokens]
    meta = {"id": "r", "completion_tokens": total, "output_token_logprobs": entries}
    meta["finish_reason"] = {"type": finish, "matched": 14} if finish else None
    return {"text": text, "meta_info": meta}


def sglang_cumulative():
    whole, so_far = "", []

    def event(tokens, text, finish, total):
        nonlocal whole, so_far
        if total > len(so_far):
            whole, so_far = whole + text, [*so_far, *tokens]
        return sglang_incremental(so_far, whole, finish, total)

    return event


WIRES: dict[str, tuple[str, Callable[[], Callable[..., dict]]]] = {
    "vllm": ("vllm", lambda: vllm),
    "sglang": ("sglang", lambda: sglang_incremental),
    "sglang cumulative": ("sglang", sglang_cumulative),
}


by_wire = pytest.mark.parametrize(("kind", "make"), WIRES.values(), ids=WIRES)


def response(make, finish="stop") -> list[bytes]:
    lines, total = [], 0
    for number, (tokens, text) in enumerate(PIECES):
        total += len(tokens)
        reason = finish if number == len(PIECES) - 1 else None
        lines.append(b"data: " + json.dumps(make(tokens, text, reason, total)).encode() + b"\n\n")
    return [*lines, b"data: [DONE]\n\n"]


@asynccontextmanager
async def engine(
    kind: str, answer: Callable[[web.Request], object], about_model: dict[str, str] | None = None
) -> AsyncIterator[EngineLink]:
    """A link to a server that shows the routes of `kind` and answers its generation route with `answer`."""

    async def generate(request: web.Request) -> web.StreamResponse:
        parts = answer(request)
        if inspect.isawaitable(parts):
            return await parts
        if isinstance(parts, web.Response):
            return parts
        stream = web.StreamResponse()
        await stream.prepare(request)
        for part in parts:
            await stream.write(part)
        return stream

    async def about(request: web.Request) -> web.Response:
        card = {"id": "served", "root": "/models/one", "max_model_len": 512}
        routes = {route: {} for route in ROUTES[kind]}
        pages = {
            "/openapi.json": {"paths": routes},
            "/v1/models": {"data": [card]},
            "/model_info": about_model or {},
        }
        return web.json_response(pages.get(request.path, {}))

    app = web.Application()
    for route in ROUTES[kind]:
        app.router.add_post(route, generate)
    app.router.add_get("/{path:.*}", about)
    connections = KeptConnections(keepalive_s=1.0, connect_timeout_s=1.0)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        with closing(connections) as kept:
            link = EngineLink(HttpTransport(session, str(server.make_url("/")), kept=kept))
            await link.probe()
            yield link


def tokens_of(chunks) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def logprobs_of(chunks) -> list[float]:
    return [value for chunk in chunks for value in chunk.logprobs]


async def collect(link: EngineLink, params=None, **more):
    params = {"temperature": 0.5, "seed": 4} | (params or {})
    return [chunk async for chunk in link.generate([1, 2, 3], 64, params, "r", **more)]
