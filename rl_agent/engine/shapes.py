"""The answers of vLLM's routes and of a pool, whole or as events of a stream, as msgspec reads them.

An event may lack almost any field, so most have a default. `wire` reads whole answers and refuses one that
lacks what it needs; `pool.engines.adapters` reads events, on the path of every token.
"""

from typing import Annotated

import msgspec

from rl_agent.engine.tokens import MAX_TOKEN_ID

MAX_ENGINE_ID = 200
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of a decoder for bytes that a server may send."""

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TOKEN_ID)]
WeightVersion = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]


class AnswerShape(msgspec.Struct, frozen=True):
    """The base of what is read of an answer; msgspec checks it in a fifth of pydantic's time."""


class TokenUsage(AnswerShape, frozen=True):
    completion_tokens: Count


class AnswerError(AnswerShape, frozen=True):
    message: str = "an error without a message"
    code: int | str | None = None


class EngineSpan(AnswerShape, frozen=True):
    """The tokens from `start` on are of this version and engine."""

    weight_version: WeightVersion
    start: Annotated[int, msgspec.Meta(ge=0)] = 0
    engine_id: Annotated[str, msgspec.Meta(max_length=MAX_ENGINE_ID, pattern=r"^[\x20-\x7e]*\Z")] = ""


class TokenLogprob(AnswerShape, frozen=True):
    logprob: float


class EngineLogprobs(AnswerShape, frozen=True):
    """The logprobs of the sampled tokens, in one form or the other."""

    token_logprobs: tuple[float, ...] | None = None
    """Those of `/v1/completions`, which also sends the tokens' texts and their places in the whole text."""
    text_offset: tuple[Count, ...] = ()
    tokens: tuple[str, ...] = ()
    content: tuple[TokenLogprob, ...] | None = None
    """Those of `/v1/chat/completions`."""

    @property
    def values(self) -> tuple[float, ...] | None:
        if self.content is not None:
            return tuple(entry.logprob for entry in self.content)
        return self.token_logprobs


class EngineChoice(AnswerShape, frozen=True):
    """A response, or the part of it that an event holds."""

    token_ids: tuple[int, ...] | None = None
    logprobs: EngineLogprobs | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: tuple[EngineSpan, ...] = ()
    """The engines that sampled the tokens; only a pool sends them."""
    prompt_token_ids: tuple[TokenId, ...] | None = None
    """The prompt as the model saw it; placeholders of images may lie behind the vocabulary."""


class VllmAnswer(AnswerShape, frozen=True):
    choices: tuple[EngineChoice, ...] = ()
    usage: TokenUsage | None = None
    error: AnswerError | None = None
    prompt_token_ids: tuple[TokenId, ...] | None = None
    """The prompt of a chat; placeholders of images may lie behind the vocabulary."""


NO_LOGPROBS = EngineLogprobs()
ANSWER = msgspec.json.Decoder(VllmAnswer)
