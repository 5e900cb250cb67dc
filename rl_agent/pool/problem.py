"""HTTP errors of the manager: a status and one line, in the form of the OpenAI API."""

import json
from typing import Any

from aiohttp import web

TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    501: "NotImplementedError",
}
"""vLLM's names of errors, by status."""


RETRY_AFTER_S = 5
"""Seconds after which a client may ask again that was refused for what passes."""
_PASSES = (429, 503, 504)


class Problem(web.HTTPException):
    def __init__(self, status: int, words: str, param: str | None = None) -> None:
        self.status_code = status
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status in _PASSES else None
        text = words_of(status, words, param)
        super().__init__(headers=headers, text=text, content_type="application/json")


def problem(status: int, words: str, *, param: str | None = None) -> Problem:
    """Return an error to raise; `param` is the field of the request that is wrong."""
    return Problem(status, words, param)


def words_of(status: int, words: str, param: str | None = None) -> str:
    """Return the body of an error as JSON."""
    return json.dumps(error_of(status, words, param))


def error_of(status: int, words: str, param: str | None = None) -> dict[str, Any]:
    """Return the body of an error as an object, as vLLM writes it."""
    usual = "InternalServerError" if status >= 500 else "BadRequestError"
    return {"error": {"message": words, "type": TYPES.get(status, usual), "param": param, "code": status}}
