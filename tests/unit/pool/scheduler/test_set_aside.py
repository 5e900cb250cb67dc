"""What cannot be handled costs itself: refused at the door, set aside by the machine or in a journal."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.engines.link import read_load
from rl_agent.pool.runtime.replay import Replay
from rl_agent.pool.runtime.results import Zero
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.machine import check
from rl_agent.pool.scheduler.migration import can_continue, finish_of_tokens, params_of, stop_strings
from rl_agent.pool.scheduler.records import FailureKind, Made, Order, RequestId, RequestState
from rl_agent.pool.scheduler.records import Request as Running
from rl_agent.pool.scheduler.sampling import Sampling, check_sampling
from rl_agent.testing.pool_setup import expected, item, manager, read_journal
from rl_agent.testing.pool_world import EOS, World, id_of
from rl_agent.testing.simulated_engine import Behaviour
from rl_agent.testing.streaming_engine import StreamingEngine, serving

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


PARAMETERS = st.sampled_from([*Sampling.model_fields, "other"])
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
        world.tell(events.EngineEnded(victim.engine_id, "killed", is_crash=True))
    elif end == "broken":
        world.tell(events.Broken(id_of("r3"), 1, "cut"))
    elif end == "drained":
        world.tell(events.DrainAsked(victim.engine_id, world.now + 0.1, "notice"))
    else:
        world.tell(events.ModelWanted("model-1", 1))
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
    world.tell(events.Progress(id_of("r3"), 1, (5,), (0.0,), "text"))
    assert world.request("r3").state is RequestState.FAILED
    check(world.state)
    world.run_until_all_ended(200)
    assert world.state.account.completed == 7


def test_what_an_earlier_manager_had_of_it_does_not_stop_a_start():
    world = World(may_set_aside=True)
    order = Order(RequestId("run", "r0"), (1,), 10, BAD, 100.0)
    world.tell(events.Submitted(order, Made((5, 6), (0.0, 0.0), "", (), 0)))
    assert world.request("r0").state is RequestState.FAILED and world.ended[id_of("r0")] == 1
    world.tell(
        events.Submitted(replace(order, request_id=id_of("r1"), params={"eos_token_ids": [EOS]}), None)
    )
    assert world.request("r1").state is RequestState.QUEUED


def test_an_event_that_makes_no_sense_is_named_and_the_rest_goes_on():
    world = World(may_set_aside=True)
    world.tell(events.WeightsWanted(None))  # type: ignore[arg-type]
    assert world.set_aside and world.set_aside[0].startswith("WeightsWanted: AttributeError")
    world.join("a")
    world.submit("r0", 20)
    world.run_until_all_ended(50)
    assert world.state.account.completed == 1


# In the journal ---------------------------------------------------------------------------------------------


def submitted(number, **more):
    request = item(number, 10) | more
    return {"kind": "submitted", "run": "run", "request": request, "holds_group": False, "deadline": 4e9}


def ended(number, **more):
    names = ("failure", "text", "finish_reason")
    sample = dict.fromkeys(names, "") | {"cursor": 0, "id": f"r{number}", "group": None, "is_completed": True}
    sample |= {"token_ids": [5], "logprobs": [0.0], "stop_reason": None, "spans": [], "moves": 0}
    return {"kind": "ended", "run": "run", "sample": sample | {"duration_s": 1.0} | more}


def write(path, *records):
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))


async def test_a_journal_that_made_a_manager_fail_lets_the_next_one_start(tmp_path):
    """As older managers let it in: a bare number where `generation_config.json` has one, too."""
    path = tmp_path / "journal"
    write(path, submitted(0), submitted(1, sampling={"eos_token_ids": 2}), submitted(2))
    async with serving(StreamingEngine(Behaviour())) as engine:
        async with manager(f"journal={path}") as pool:
            await pool.join(engine.url)
            samples = {one["id"]: one for one in await pool.samples("run", at_least=3)}
            assert samples["r0"]["token_ids"] == expected(10, 0)
            assert samples["r2"]["token_ids"] == expected(10, 2)
            assert not samples["r1"]["is_completed"]
            assert "record 2: submitted.request.sampling" in samples["r1"]["failure"]
            _, status = await pool.call("GET", "/status")
            assert status["set_aside"]["count"] == 1 and "eos_token_ids" in status["set_aside"]["newest"][0]
            assert "rl_pool_set_aside_total 1.0" in (await pool.call("GET", "/metrics"))[1]
        [kept] = read_journal(tmp_path / "journal.quarantine")
        assert json.loads(kept["record"]) == submitted(1, sampling={"eos_token_ids": 2})
        assert (tmp_path / "journal.quarantine").stat().st_mode & 0o777 == 0o600
        async with manager(f"journal={path}") as pool:
            assert {one["id"] for one in await pool.samples("run", at_least=3)} == {"r0", "r1", "r2"}
            assert pool.batches.pool.faults.count == 0
        assert len(read_journal(tmp_path / "journal.quarantine")) == 1


BROKEN = [
    b"no JSON at all",
    b"\xff\xfe\x00",
    b"[" * 5000,
    b"7",
    b"{}",
    {"kind": "nothing known", "run": "run"},
    {"kind": "submitted", "run": 5},
    {"kind": "submitted", "run": "run", "request": {"id": 5}},
    {"kind": "progress", "run": "run", "id": "r0", "start": 3},
    {"kind": "acknowledged", "run": "run", "cursor": "2"},
    {"kind": "ended", "run": "run", "sample": {"id": "r9"}},
    {"kind": "model", "asked": {"model": "m", "weight_version": "1"}},
    {"kind": "weights", "asked": {}},
]


@pytest.mark.parametrize("record", BROKEN, ids=lambda record: str(record)[:40])
def test_any_record_may_be_broken_and_the_others_count(record, tmp_path):
    write(tmp_path / "journal", submitted(0), record, submitted(1), ended(0))
    runs = {}
    replay = Replay(runs, {}, lambda asked: None, Zero(0.0, 0.0, ""))
    replay.read(tmp_path / "journal")
    assert [sample.id for sample in runs["run"].samples] == ["r0"]
    assert list(runs["run"].open) == ["r1"]
    assert len(replay.set_aside) == 1 and replay.set_aside[0].startswith("record 2: ")
    assert len(read_journal(tmp_path / "journal.quarantine")) == 1


@pytest.mark.parametrize(
    ("records", "seen"),
    [
        # A result that cannot be read keeps its place among the others.
        (
            [submitted(0), submitted(1), ended(0, token_ids="?"), ended(1)],
            {1: ("r0", False), 2: ("r1", True)},
        ),
        # A request that cannot be read and ended all the same has its result.
        ([submitted(0, max_tokens=-1), ended(0)], {1: ("r0", True)}),
        # One that did not end fails, after all that did.
        ([submitted(0, max_tokens=-1), submitted(1), ended(1)], {1: ("r1", True), 2: ("r0", False)}),
        # A result whose submission is wholly lost counts.
        ([b"lost", ended(0)], {1: ("r0", True)}),
        # What was acknowledged stays so, though a record before it is lost.
        (
            [
                submitted(0),
                submitted(1),
                b"lost",
                ended(1),
                {"kind": "acknowledged", "run": "run", "cursor": 2},
            ],
            {},
        ),
    ],
)
def test_cursors_stay_right_though_records_are_set_aside(records, seen, tmp_path):
    write(tmp_path / "journal", *records)
    runs = {}
    Replay(runs, {}, lambda asked: None, Zero(0.0, 0.0, "")).read(tmp_path / "journal")
    found = {sample.cursor: (sample.id, sample.is_completed) for sample in runs["run"].samples}
    assert found == seen
    if not seen:
        assert runs["run"].next_cursor == 3 and runs["run"].acknowledged == 2


@given(data=st.data())
def test_a_journal_of_anything_is_read(data, tmp_path_factory):
    whole = [submitted(0), submitted(1, group="g"), ended(0), {"kind": "dropped", "run": "other"}]
    record = st.sampled_from(whole).flatmap(lambda one: st.fixed_dictionaries(dict.fromkeys(one, ANYTHING)))
    mixed = data.draw(st.lists(st.sampled_from(whole) | record | ANYTHING, max_size=6))
    path = tmp_path_factory.mktemp("journal") / "journal"
    path.write_text("".join(json.dumps(one) + "\n" for one in mixed))
    runs = {}
    replay = Replay(runs, {}, lambda asked: None, Zero(0.0, 0.0, ""))
    replay.read(path)
    for run in runs.values():
        assert not set(run.open) - run.ids
