"""What cannot be handled costs itself: refused at the door, set aside by the machine."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.engines.link import read_load
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.machine import check
from rl_agent.pool.scheduler.migration import can_continue, finish_of_tokens, params_of, stop_strings
from rl_agent.pool.scheduler.records import FailureKind, Order, PartialResponse, RequestId, RequestState
from rl_agent.pool.scheduler.records import Request as Running
from rl_agent.pool.scheduler.sampling import SamplingParams, check_sampling
from rl_agent.testing.pool_setup import item, manager
from rl_agent.testing.pool_world import EOS, World, id_of

# At the door ------------------------------------------------------------------------------------------------

WRONG = [
    ("eos_token_ids", 2),
    ("eos_token_ids", [2.0]),
    ("eos_token_ids", ["2"]),
    ("eos_token_ids", [[2]]),
    ("eos_token_ids", {"2": 2}),
    ("eos_token_ids", [-1]),
    ("eos_token_ids", [2**31]),
    ("stop_token_ids", 7),
    ("stop_token_ids", True),
    ("stop_token_ids", list(range(5000))),
    ("stop", 3),
    ("stop", [3]),
    ("stop", ""),
    ("stop", [""]),
    ("stop", {"a": 1}),
    ("stop", ["a"] * 100),
    ("min_tokens", "4"),
    ("min_tokens", 4.5),
    ("min_tokens", -1),
    ("min_tokens", 2**70),
    ("seed", "x"),
    ("seed", 1.5),
    ("seed", 2**63),
    ("seed", [1]),
    ("temperature", "hot"),
    ("temperature", -0.1),
    ("temperature", True),
    ("top_p", 1.1),
    ("top_k", 1.5),
    ("ignore_eos", "yes"),
    ("ignore_eos", 1),
    ("include_stop_str_in_output", []),
    ("skip_special_tokens", "false"),
    ("repetition_penalty", 0),
    ("presence_penalty", "0"),
    ("logit_bias", [1]),
    ("logit_bias", {"1": "much"}),
    ("structured_outputs", {"json": json.loads("[" * 50 + "]" * 50)}),
    ("other", [[0] * 100] * 1000),
]


async def test_a_sampling_parameter_of_another_type_is_refused_by_name():
    async with manager() as pool:
        for name, value in WRONG:
            asked = item(0, 10) | {"sampling": {name: value}}
            status, answer = await pool.call("POST", "/runs/run/requests", {"requests": [item(1, 10), asked]})
            assert status == 422, (name, value)
            assert answer["error"]["message"].startswith(f"requests.1.sampling: Value error, {name}: ")
            status, answer = await pool.call("POST", "/v1/completions", {"prompt": [1], name: value})
            assert status == 400 and answer["error"]["message"].startswith(f"{name}: "), (name, value)
        assert not pool.state.requests


async def test_what_the_pool_says_itself_is_not_taken_from_a_batch():
    async with manager() as pool:
        for name in ("n", "stream", "model", "prompt", "request_id", "max_tokens", "logprobs"):
            asked = item(0, 10) | {"sampling": {name: 1}}
            status, answer = await pool.call("POST", "/runs/run/requests", {"requests": [asked]})
            assert status == 422 and f"{name}: the pool says this" in answer["error"]["message"]


UNTYPED = [
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"prompt_token_ids": [True]}, "prompt_token_ids.0"),
    ({"prompt_token_ids": [1.0]}, "prompt_token_ids.0"),
    ({"prompt_token_ids": [-1] * 100_000}, "prompt_token_ids.0"),
    ({"min_weight_version": 2**60}, "min_weight_version"),
    ({"expected_tokens": 1.5}, "expected_tokens"),
    ({"id": 7}, "id"),
    ({"id": "a\x9b31m"}, "id"),
    ({"group": "\u202egroup"}, "group"),
    ({"unknown": 1}, "unknown"),
]


async def test_a_request_is_typed_strictly():
    async with manager() as pool:
        for change, where in UNTYPED:
            asked = {"requests": [item(0, 10) | change]}
            status, answer = await pool.call("POST", "/runs/run/requests", asked)
            assert status == 422 and answer["error"]["message"].startswith(f"requests.0.{where}: "), change
            assert len(answer["error"]["message"]) < 300


MESSAGES = [
    ("/runs/run/requests", {"requests": [], "deadline_s": 1}, "requests"),
    ("/runs/run/requests", {"requests": 5}, "requests"),
    ("/runs/run/requests", {"requests": [{}], "deadline_s": math.inf}, ""),
    ("/runs/run/requests", {"requests": [{}], "deadline_s": 1e300}, "deadline_s"),
    ("/runs/run/requests", {"requests": [{}], "deadline_s": "1"}, "deadline_s"),
    ("/runs/run/requests", {"requests": [{}], "holds_groups": 1}, "holds_groups"),
    ("/engines", {"name": "e", "has_worker": True, "price_per_hour": math.inf}, "price_per_hour"),
    ("/engines", {"name": "e", "has_worker": True, "capacity": True}, "capacity"),
    ("/engines", {"name": "e\x1b[2J", "has_worker": True}, "name"),
    ("/engines", {"name": "e", "has_worker": 1}, "has_worker"),
    ("/engines", {"name": "e", "has_worker": True, "weights": {"weight_version": 2**80}}, "weights"),
    ("/model", {"model": "m", "weight_version": 2**63}, "weight_version"),
    ("/model", {"model": "m", "weight_version": 1.0}, "weight_version"),
    ("/v1/completions", {"prompt": [1], "timeout_s": True}, "timeout_s"),
    ("/v1/completions", {"prompt": [1], "timeout_s": 10**400}, "timeout_s"),
    ("/v1/completions", {"prompt": [1], "group": "a\nb"}, "group"),
]


async def test_every_message_is_typed_and_bounded():
    async with manager() as pool:
        for path, body, where in MESSAGES:
            status, answer = await pool.call("POST", path, body)
            assert status in (400, 422) and where in answer["error"]["message"], (body, answer)
        assert not pool.state.engines and not pool.state.requests


async def test_words_of_a_worker_are_one_line_of_the_log(caplog):
    caplog.set_level("INFO")
    async with manager() as pool:
        await pool.call("POST", "/engines", {"name": "e", "has_worker": True})
        await pool.call("POST", "/engines/e/leave", {"reason": "gone\n12:00 all is well\x1b[2J\x9b"})
    [said] = [record.getMessage() for record in caplog.records if "gone" in record.getMessage()]
    assert said.isprintable() and "all is well" in said


PARAMETERS = st.sampled_from([*SamplingParams.model_fields, "other"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(params=st.dictionaries(PARAMETERS, ANYTHING, max_size=4), made=st.integers(0, 5))
def test_what_the_door_lets_in_the_machine_can_read(params, made):
    try:
        check_sampling(params)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    request = Running(Order(RequestId("run", "r"), (1,), 100, params, 0.0), 0, 0.0)
    request.token_ids.extend(range(made))
    request.logprobs.extend([0.0] * made)
    assert finish_of_tokens(request) in ("", "stop")
    assert can_continue(params) in (True, False)
    assert all(stop_strings(params))
    params_of(request)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400", "-5", "many", "1e40"])
def test_a_load_that_counts_nothing_is_no_load(value):
    assert read_load(f'vllm:num_requests_running{{engine="0"}} {value}\n') is None


# In the machine ---------------------------------------------------------------------------------------------

BAD = {"eos_token_ids": 2}


def world_with(params, **more):
    world = World(may_set_aside=True)
    engines = [world.join("a"), world.join("b")]
    world.run(1.0)
    for number in range(8):
        world.submit(f"r{number}", 200, params=params if number == 3 else {}, **more)
    world.run(2.0)
    return world, engines


@pytest.mark.parametrize("end", ["ended", "broken", "drained", "another model"])
def test_a_request_that_the_machine_cannot_move_fails_alone(end):
    world, engines = world_with(BAD)
    victim = next(e for e in engines if (id_of("r3"), 1) in e.attempts)
    if end == "ended":
        world.handle(events.EngineEnded(victim.engine_id, "killed", is_crash=True))
    elif end == "broken":
        world.handle(events.Broken(id_of("r3"), 1, "cut"))
    elif end == "drained":
        world.handle(events.DrainAsked(victim.engine_id, world.now + 0.1, "notice"))
    else:
        world.handle(events.ModelWanted("model-1", 1))
        for engine in engines:
            engine.model = "model-1"
    world.run_until_all_ended(200)
    bad = world.request("r3")
    assert bad.state is RequestState.FAILED and "TypeError" in bad.failure
    assert bad.failure_kind is FailureKind.INTERNAL
    assert len(world.set_aside) == 1 and "run/r3/0" in world.set_aside[0]
    assert (world.state.account.completed, world.state.account.failed) == (7, 1)
    world.assert_all_right()


def test_a_request_that_the_machine_cannot_read_on_fails_alone():
    world, _ = world_with({"stop": 5})
    world.handle(events.Progress(id_of("r3"), 1, (5,), (0.0,), "text"))
    assert world.request("r3").state is RequestState.FAILED
    check(world.state)
    world.run_until_all_ended(200)
    assert world.state.account.completed == 7


def test_what_an_earlier_manager_had_of_it_does_not_stop_a_start():
    world = World(may_set_aside=True)
    order = Order(RequestId("run", "r0"), (1,), 10, BAD, 100.0)
    world.handle(events.Submitted(order, PartialResponse((5, 6), (0.0, 0.0), "", (), 0)))
    assert world.request("r0").state is RequestState.FAILED and world.ended[id_of("r0")] == 1
    world.handle(
        events.Submitted(replace(order, request_id=id_of("r1"), params={"eos_token_ids": [EOS]}), None)
    )
    assert world.request("r1").state is RequestState.QUEUED


def test_an_event_that_makes_no_sense_is_named_and_the_rest_goes_on():
    world = World(may_set_aside=True)
    world.handle(events.WeightsWanted(None))  # type: ignore[arg-type]
    assert world.set_aside and world.set_aside[0].startswith("WeightsWanted: AttributeError")
    world.join("a")
    world.submit("r0", 20)
    world.run_until_all_ended(50)
    assert world.state.account.completed == 1
