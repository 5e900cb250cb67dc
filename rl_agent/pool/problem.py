"""What a client gets instead of an answer: a status and one line, in the form that OpenAI clients know."""

import json

from aiohttp import web


class Problem(web.HTTPException):
    def __init__(self, status: int, words: str) -> None:
        self.status_code = status
        super().__init__(text=words_of(status, words), content_type="application/json")


def problem(status: int, words: str) -> Problem:
    return Problem(status, words)


def words_of(status: int, words: str) -> str:
    """The body of such an answer."""
    return json.dumps({"error": {"message": words, "code": status}})
