"""An engine is told of a response's end, or the pool finds it itself."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.engines.adapters import ADAPTERS, TokensRequest
from rl_agent.pool.scheduler.migration import (
    can_continue,
    finish_of_tokens,
    held_back,
    params_of,
    stop_strings,
)
from rl_agent.pool.scheduler.records import Order, Request, RequestId
from rl_agent.pool.scheduler.sampling import SamplingParams, check_sampling

PARAMS = {"stop": ["END"], "stop_token_ids": [7], "include_stop_str_in_output": True}


def test_engine_gets_no_stop_strings_but_the_choice_to_show_stop_tokens():
    request = Request(Order(RequestId("run", "r"), (1,), 10, PARAMS, 1e9), number=0, submitted_at=0.0)
    assert params_of(request) == {"stop_token_ids": [7], "include_stop_str_in_output": True}


def test_sglang_calls_it_by_another_name():
    request = TokensRequest("m", (1,), 10, {"include_stop_str_in_output": True}, "r", 1)
    assert json.loads(ADAPTERS["sglang"].body(request))["sampling_params"]["no_stop_trim"] is True


@pytest.mark.parametrize(("is_shown", "size"), [(None, 2), (False, 2), (True, 0)])
def test_a_stop_string_is_held_back_unless_it_is_shown(is_shown, size):
    assert held_back(PARAMS | {"include_stop_str_in_output": is_shown}) == size
    assert held_back({}) == 0


PARAMETERS = st.sampled_from([*SamplingParams.model_fields, "other"])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(params=st.dictionaries(PARAMETERS, ANYTHING, max_size=4), sampled=st.integers(0, 5))
def test_what_the_door_lets_in_the_machine_can_read(params, sampled):
    try:
        check_sampling(params)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    request = Request(Order(RequestId("run", "r"), (1,), 100, params, 0.0), 0, 0.0)
    request.token_ids.extend(range(sampled))
    request.logprobs.extend([0.0] * sampled)
    assert finish_of_tokens(request) in ("", "stop")
    assert can_continue(params) in (True, False)
    assert all(stop_strings(params))
    params_of(request)
