"""Asks vLLM for the texts of tokens (`derender`), as it would have given them with a response. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from rl_agent.engine.shapes import UNREADABLE, AnswerShape
from rl_agent.pool.engines.answers import WrongAnswer

PATH = "/v1/completions/derender"


class _Text(AnswerShape, frozen=True):
    text: str


class _Texts(AnswerShape, frozen=True):
    choices: tuple[_Text, ...]


_TEXTS = msgspec.json.Decoder(_Texts)


def texts_request(parts: Sequence[Sequence[int]], *, skips_special_tokens: bool) -> dict[str, Any]:
    """Return the body that asks for the text of each part, which has a token at least."""
    choices = [{"index": index, "token_ids": list(part)} for index, part in enumerate(parts)]
    # Without a prompt it is not a request.
    reading = {"prompt": "-", "skip_special_tokens": skips_special_tokens}
    return {"generate_responses": [{"choices": choices}], "completion_request": reading}


def read_texts(payload: bytes) -> tuple[str, ...]:
    """Raises WrongAnswer."""
    try:
        return tuple(choice.text for choice in _TEXTS.decode(payload).choices)
    except UNREADABLE as error:
        raise WrongAnswer(f"{PATH}: {error}") from None
