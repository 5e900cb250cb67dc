"""Requests of the OpenAI API, read, or refused in words."""

import json

import pytest
from aiohttp import web

from rl_agent.pool.api.openai_schemas import ChatCall, CompletionCall, read_call

MESSAGES = [{"role": "user", "content": "Hello"}]


def call_of(*, is_chat: bool = False, **body):
    about = {"messages": MESSAGES} if is_chat else {"prompt": [1, 2]}
    return read_call(about | body, ChatCall if is_chat else CompletionCall)


def refused(**body):
    with pytest.raises(web.HTTPException) as caught:
        call_of(**body)
    error = json.loads(caught.value.text)["error"]
    assert caught.value.status_code == error["code"] == 400
    assert error["type"] == "BadRequestError"
    return error
