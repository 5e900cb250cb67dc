"""Asks engines what the pool cannot know itself: the tokens of a prompt, and the message that tokens are.

A response that still grows is read as far as it is there, if an engine answers at once.
"""

from functools import partial
from typing import Any, TypeVar

import msgspec

from rl_agent.config.plan import PoolConfig
from rl_agent.engine.packed import PARAMETERS, RENDER_PATH, RenderedChat
from rl_agent.pool.api.openai_chat import DERENDER, cut_at_stop, derender_body, message_of
from rl_agent.pool.api.openai_schemas import GRAMMARS, Call, ChatCall
from rl_agent.pool.engines.answers import WrongAnswer
from rl_agent.pool.problem import problem
from rl_agent.pool.runtime.detokenize import read_text, response_tokens
from rl_agent.pool.runtime.engine_questions import Read, ask_any, ask_now, read_prompt
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler.records import Request

T = TypeVar("T")
RENDER = "/v1/chat/completions/render"
_OF_THE_CALL = frozenset(
    {"stream", "stream_options", "stream_interval", "n", "timeout_s", "min_weight_version", "expected_tokens"}
    | {"group", "episode", "vocab_size", "eos_token_ids"}
)
"""Fields that say nothing of a prompt or a response, and are not for the engine that reads these."""


class EngineReader:
    """Raises web.HTTPException where no engine answers in time, or one refuses the request."""

    def __init__(self, config: PoolConfig, pool: Pool) -> None:
        self._config = config
        self._pool = pool

    async def tokens_of_text(self, text: str, call: Call, *, adds_special_tokens: bool) -> tuple[int, ...]:
        body = {"prompt": text, "add_special_tokens": adds_special_tokens}
        return await self._ask("/tokenize", body, call, partial(read_prompt, key="tokens"))

    async def prompt_of_chat(
        self, chat: dict[str, Any], call: ChatCall
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Return token ids and all sampling parameters."""
        return await self._ask(RENDER, _alone(chat), call, partial(_read_chat, params=call.params))

    async def prompt_with_images(
        self, chat: dict[str, Any], call: ChatCall
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Return token ids of which one stands for each image, and all sampling parameters."""
        forced = set[str]() if call.tool_choice in ("none", "auto") else {"tool_choice"}
        if others := sorted((call.params.keys() - PARAMETERS) | forced):
            raise problem(400, f"{others[0]}: a chat with images does not support it", param=others[0])
        return await self._ask(RENDER_PATH, _alone(chat), call, partial(_read_rendered, params=call.params))

    async def message(self, chat: dict[str, Any], call: ChatCall, request: Request) -> dict[str, Any]:
        """Return the message of a response that has ended: reasoning, content, tool calls."""
        token_ids = await self._said(call, request)
        read = partial(message_of, request=request, tokens=token_ids, chat=call)
        return await self._ask(DERENDER, self._question(chat, request, token_ids), call, read)

    async def message_now(
        self, chat: dict[str, Any], call: ChatCall, request: Request
    ) -> dict[str, Any] | None:
        """Return the message so far of a response that still grows; None if no engine answers at once."""
        token_ids = list(request.token_ids)
        read = partial(message_of, request=request, tokens=token_ids, chat=call)
        return await ask_now(self._pool, DERENDER, self._question(chat, request, token_ids), read)

    def _question(self, chat: dict[str, Any], request: Request, token_ids: list[int]) -> dict[str, Any]:
        return derender_body(request, token_ids, _alone(chat), self._pool.state.model)

    async def _said(self, call: ChatCall, request: Request) -> list[int]:
        """Return the tokens of what the client is to see.

        vLLM reads a response that a stop string ended as the text up to there, in which a tool call may have
        lost its end. So it is read from the tokens of that text.
        """
        if not isinstance(request.stop_reason, str):
            return response_tokens(request)
        tokens = {"tokens": list(request.token_ids)}
        text = cut_at_stop(await self._ask("/detokenize", tokens, call, read_text), request)
        return list(await self.tokens_of_text(text, call, adds_special_tokens=False)) if text else []

    async def _ask(self, path: str, body: dict[str, Any], call: Call, read: Read[T]) -> T:
        limit_s = call.timeout_s or self._config.request_timeout_s
        pause_s = self._config.heartbeat_s / 2
        return await ask_any(self._pool, path, body, read, timeout_s=limit_s, pause_s=pause_s)


def _read_chat(answer: dict[str, Any], params: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Read a prompt, and the grammar that vLLM makes of a chat: also of tools that are strict or forced."""
    sampling = answer.get("sampling_params")
    grammar = sampling.get("structured_outputs") if isinstance(sampling, dict) else None
    if isinstance(grammar, dict):
        stated = {name: value for name, value in grammar.items() if value and not name.startswith("_")}
        params = {name: value for name, value in params.items() if name not in GRAMMARS}
        params["structured_outputs"] = stated
    return read_prompt(answer, "token_ids"), params


def _read_rendered(answer: dict[str, Any], params: dict[str, Any]) -> tuple[tuple[int, ...], dict[str, Any]]:
    try:
        sampling = msgspec.convert(answer, RenderedChat).sampling
    except msgspec.ValidationError as error:
        raise WrongAnswer(f"{RENDER_PATH}: {error}") from None
    return read_prompt(answer, "token_ids"), sampling | params


def _alone(chat: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chat.items() if name not in _OF_THE_CALL}
