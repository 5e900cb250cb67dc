"""Checks an engine's answer as it comes in, and refuses what it cannot have sampled. Pure."""

import msgspec

from rl_agent.engine.shapes import UNREADABLE
from rl_agent.engine.tokens import MAX_TOKEN_ID, flaw_of
from rl_agent.engine.wire import ABORTED, FINISHED


class Chunk(msgspec.Struct, frozen=True):
    """Some tokens of a response; `finish_reason` is set on its last one."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    names: tuple[str, ...] = ()
    """Texts of the tokens, if they are wanted and the engine gives them."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt as the model saw it, with the first tokens where it has images."""


class StreamError(Exception):
    """The engine's stream cannot be used any further."""


class Refused(StreamError):
    """The engine says that the request is wrong; another engine would say the same."""


class WrongAnswer(StreamError):
    """The engine sent what it cannot have sampled: it is at fault, not the request or the network."""


ENDINGS = (*FINISHED, ABORTED, "error")
"""All that an engine may say of an end; the last two are none of the response."""
MAX_TEXT_OF_TOKEN = 1024
MAX_TEXT_HELD_BACK = 65_536
"""Characters that may come with one token, besides those of its own: of half characters before it."""
MAX_EXCERPT = 2000
"""Characters of an engine's message that are handed on."""


class AnswerCheck:
    """Follows one answer: `max_tokens` were asked for, of a vocabulary of `vocab_size` if that is known."""

    def __init__(self, max_tokens: int, vocab_size: int | None, *, needs_names: bool = False) -> None:
        self._max_tokens = max_tokens
        self._vocab_size = vocab_size
        self._needs_names = needs_names
        self._tokens = 0
        self._characters = 0

    def admit(self, chunk: Chunk) -> None:
        """Raises WrongAnswer, and Refused for an engine that does not do what is needed."""
        if flaw := flaw_of(chunk.token_ids, chunk.logprobs, self._vocab_size):
            raise WrongAnswer(f"after {self._tokens} tokens: {flaw}")
        self._tokens += len(chunk.token_ids)
        self._characters += len(chunk.text) + sum(map(len, chunk.names))
        if self._needs_names and len(chunk.names) != len(chunk.token_ids):
            if not chunk.names:
                raise Refused("logprobs need names of tokens, and this engine gives none")
            raise WrongAnswer(f"{len(chunk.token_ids)} tokens with {len(chunk.names)} names")
        if self._tokens > self._max_tokens:
            raise WrongAnswer(f"{self._tokens} tokens, where {self._max_tokens} were asked for")
        if self._characters > MAX_TEXT_OF_TOKEN * self._tokens + MAX_TEXT_HELD_BACK:
            raise WrongAnswer(f"{self._characters} characters for {self._tokens} tokens")
        if chunk.finish_reason is not None:
            self._check_end(chunk.finish_reason, chunk.stop_reason)

    def _check_end(self, reason: str, stop: int | str | None) -> None:
        if reason not in ENDINGS:
            raise WrongAnswer(f"an end for the reason {reason[:40]!r}, which is unknown")
        if reason in FINISHED and not self._tokens:
            raise WrongAnswer("an end before the first token")
        if isinstance(stop, int) and not 0 <= stop < MAX_TOKEN_ID:
            raise WrongAnswer("a stop_reason that is not a token")


def excerpt(text: str) -> str:
    """Return the beginning of an engine's text as one line."""
    return " ".join(text[:MAX_EXCERPT].split())


def words_of_error(payload: bytes) -> str:
    """Return an engine's reason for an error: the message of vLLM's, or the beginning of any answer."""
    try:
        return excerpt(_ERROR.decode(payload).error.message)
    except UNREADABLE:
        return excerpt(payload[:MAX_EXCERPT].decode("utf-8", "replace"))


class _ErrorWords(msgspec.Struct, frozen=True):
    message: str


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorWords


_ERROR = msgspec.json.Decoder(_ErrorBody)


def is_refusal(status: int) -> bool:
    """Tell whether an HTTP status blames the request; too busy and too slow do not."""
    return 400 <= status < 500 and status not in (401, 403, 404, 408, 409, 425, 429)
