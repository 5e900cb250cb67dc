"""Speaks to a server that answers a chat with text and tells no tokens, such as a hosted model.

What is not OpenAI's own is not sent: such servers refuse a request with a parameter that they do not know.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.json import Decoder
from pydantic_core import to_json
from yarl import URL

from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.image_content import inlined
from rl_agent.engine.shapes import AnswerShape
from rl_agent.engine.wire import FINISHED, MAX_MODEL_LEN, Response, Sampling, ServedModel, read_answer
from rl_agent.errors import EngineError
from rl_agent.types import Generation


class _TextMessage(AnswerShape, frozen=True):
    content: str | None = None


class _TextChoice(AnswerShape, frozen=True):
    message: _TextMessage
    finish_reason: str | None = None


class _TextAnswer(AnswerShape, frozen=True):
    choices: tuple[_TextChoice, ...]


class _Named(AnswerShape, frozen=True):
    id: str


class _NamedModels(AnswerShape, frozen=True):
    data: tuple[_Named, ...]


_TEXT_ANSWER = Decoder(_TextAnswer)
_NAMED_MODELS = Decoder(_NamedModels)


class TextEngineClient(EngineClient):
    """An engine client whose responses have a text alone; without `model` it asks for the first one listed.

    The address is that of the API, `https://HOST/v1`; of an address without a path, its `/v1`.
    """

    def __init__(self, base_url: str, settings: ClientSettings, *, model: str | None) -> None:
        url = URL(base_url)
        api = url if url.path.rstrip("/") else url / "v1"
        super().__init__(str(api), settings, identify=lambda served: 0)
        self._model = model
        self._chat_completions = api / "chat" / "completions"

    async def served_model(self) -> ServedModel:
        name = self._model
        if name is None:
            models = read_answer(_NAMED_MODELS, await self._ask("models")).data
            if not models:
                raise EngineError(f"the server at {self._url} lists no model; name one")
            name = models[0].id
        return ServedModel(name, name, MAX_MODEL_LEN - 1)

    async def generate_chat(
        self,
        messages: Sequence[dict[str, Any]],
        sampling: Sampling,
        *,
        request_id: str,
        chat_template_kwargs: dict[str, Any],
        decode: Callable[[Sequence[int]], str] | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> tuple[tuple[int, ...], Generation]:
        """Draw one response to messages; there are no token ids of the prompt."""
        body = await asyncio.to_thread(_request, self.served.id, messages, sampling)
        started = time.monotonic()
        response = await self._post(self._chat_completions, body, _response)
        return (), self._stamped(response, started)

    async def _has(self, path: str) -> bool:
        return False

    async def _require_alive(self, problem: str) -> None:
        try:
            await self._ask("models")
        except EngineError:  # it answers
            return


def _request(model: str, messages: Sequence[dict[str, Any]], sampling: Sampling) -> bytes:
    body = {
        "model": model,
        "messages": [_plain(message) for message in inlined(messages)],
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
    }
    # Some models refuse to be asked for the value that they have.
    chosen = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return to_json(body | {name: value for name, value in chosen.items() if value != 1.0})


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the digests of its images, which only vLLM knows."""
    if isinstance(message["content"], str):
        return message
    parts = [{name: value for name, value in part.items() if name != "uuid"} for part in message["content"]]
    return message | {"content": parts}


def _response(payload: bytes) -> Response:
    choices = read_answer(_TEXT_ANSWER, payload).choices
    if len(choices) != 1 or choices[0].message.content is None:
        raise EngineError("the server's answer has no text")
    finish_reason = choices[0].finish_reason
    if finish_reason not in FINISHED:
        raise EngineError(
            f"the server ended a response for the reason {str(finish_reason)[:40]!r}, which is unknown"
        )
    return Response((), (), choices[0].message.content, finish_reason)
