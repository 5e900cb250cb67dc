"""What an engine is told of a response's end, and what the pool finds itself."""

import json

import pytest

from rl_agent.pool.engines.adapters import ADAPTERS, TokensRequest
from rl_agent.pool.scheduler.migration import held_back, params_of
from rl_agent.pool.scheduler.records import Order, Request, RequestId

PARAMS = {"stop": ["END"], "stop_token_ids": [7], "include_stop_str_in_output": True}


def test_an_engine_is_not_told_of_stop_strings_but_of_whether_a_stop_token_is_shown():
    request = Request(Order(RequestId("run", "r"), (1,), 10, PARAMS, 1e9), number=0, submitted_at=0.0)
    assert params_of(request) == {"stop_token_ids": [7], "include_stop_str_in_output": True}


def test_sglang_calls_it_by_another_name():
    asked = TokensRequest("m", (1,), 10, {"include_stop_str_in_output": True}, "r", 1)
    assert json.loads(ADAPTERS["sglang"].body(asked))["sampling_params"]["no_stop_trim"] is True


@pytest.mark.parametrize(("is_shown", "size"), [(None, 2), (False, 2), (True, 0)])
def test_a_stop_string_is_held_back_unless_it_is_shown(is_shown, size):
    assert held_back(PARAMS | {"include_stop_str_in_output": is_shown}) == size
    assert held_back({}) == 0
