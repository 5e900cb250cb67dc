"""What a client gets instead of an answer: a status and one line, in the form that OpenAI clients know."""

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


class Problem(web.HTTPException):
    def __init__(self, status: int, words: str, param: str | None = None) -> None:
        self.status_code = status
        super().__init__(text=words_of(status, words, param), content_type="application/json")


def problem(status: int, words: str, *, param: str | None = None) -> Problem:
    """An error to raise; `param` is the field of the request that is wrong."""
    return Problem(status, words, param)


def words_of(status: int, words: str, param: str | None = None) -> str:
    """The body of such an answer."""
    return json.dumps(error_of(status, words, param))


def error_of(status: int, words: str, param: str | None = None) -> dict[str, Any]:
    """The same as an object, as vLLM has it."""
    usual = "InternalServerError" if status >= 500 else "BadRequestError"
    return {"error": {"message": words, "type": TYPES.get(status, usual), "param": param, "code": status}}
