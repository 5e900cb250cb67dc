"""Other requests to engines: tokenize a text or a chat, detokenize a response.

any engine ─(it fails, answers what is none, or has no such route)─► another, until the deadline
    └─(400)─► the client, with the engine's words
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from pydantic_core import to_json

from rl_agent.engine.tokens import MAX_TOKEN_ID
from rl_agent.pool.engines.answers import StreamError, WrongAnswer, words_of_error
from rl_agent.pool.engines.link import EngineLink
from rl_agent.pool.problem import problem
from rl_agent.pool.runtime.service import Pool

T = TypeVar("T")
Read = Callable[[dict[str, Any]], T]
"""Raises WrongAnswer."""


class NoSuchRoute(StreamError):
    """The engine has no route for a question; another one may have it."""


async def ask_any(
    pool: Pool, path: str, body: dict[str, Any], read: Read[T], *, timeout_s: float, pause_s: float
) -> T:
    """Ask engines until one answers or the time is over. Raises web.HTTPException."""
    words = "no engine in the pool"
    lacking: set[EngineLink] = set()
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                link = pool.ready_link(lacking)
                if link is None and lacking:
                    raise problem(501, words)
                if link is not None and link.info is not None:
                    try:
                        return read(await _ask(link, path, body | {"model": link.info.served_name}))
                    except NoSuchRoute as error:
                        words = str(error)
                        lacking.add(link)
                        continue
                    except StreamError as error:
                        words = str(error)
                pool.num_unread += 1
                try:
                    await asyncio.sleep(pause_s)
                finally:
                    pool.num_unread -= 1
    except TimeoutError:
        raise problem(504, f"{path}: {words} within {timeout_s:g} s") from None


async def ask_now(pool: Pool, path: str, body: dict[str, Any], read: Read[T]) -> T | None:
    """Ask a ready engine once; None if none answers."""
    link = pool.ready_link()
    if link is None or link.info is None:
        return None
    try:
        return read(await _ask(link, path, body | {"model": link.info.served_name}))
    except (StreamError, web.HTTPException, LookupError, TypeError):  # nothing that can be read
        return None


async def _ask(link: EngineLink, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, payload = await link.post(path, to_json(body))
    if status == 404:
        raise NoSuchRoute(f"the engines of this pool have no {path}, which this request needs")
    if 400 <= status < 500 and status != 429:
        raise problem(400, words_of_error(payload))
    if status != 200:
        raise StreamError(f"{path} answered HTTP {status}")
    try:
        answer = msgspec.json.decode(payload)
    except (ValueError, RecursionError) as error:
        raise WrongAnswer(f"{path} gave no JSON") from error
    if not isinstance(answer, dict):
        raise WrongAnswer(f"{path} gave no JSON object")
    return answer


def read_prompt(answer: dict[str, Any], key: str) -> tuple[int, ...]:
    """Return the tokens of a prompt. Raises WrongAnswer, and web.HTTPException for a prompt without any."""
    tokens = answer.get(key)
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token < MAX_TOKEN_ID for token in tokens
    ):
        raise WrongAnswer(f"{key} of its answer are not token ids")
    if not tokens:
        raise problem(400, "the prompt has no tokens")
    return tuple(tokens)
