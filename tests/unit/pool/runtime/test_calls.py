"""A call of the API that is sent again after its manager's death goes on where the journal has it."""

from dataclasses import replace

import pytest

from rl_agent.pool.runtime.calls import Calls, call_record, digest_of, ended_call_record, key_of
from rl_agent.pool.runtime.journal import line_of
from rl_agent.pool.runtime.replay import Replay
from rl_agent.pool.runtime.results import Zero
from rl_agent.pool.scheduler.records import Made, Order, RequestId, Span

ORDER = Order(RequestId("run", "api-1"), (1, 2, 3), 50, {"temperature": 1.0, "seed": 7}, deadline=100.0)
KEY = ("run", "task/0:1-0")
MADE = Made((5, 6, 7), (-0.1, -0.2, -0.3), "abc", (Span(0, "e", 3),), 1)
ZERO = Zero(-1000.0, 0.0, "")


def after_a_death(tmp_path, *records) -> Calls:
    """The next manager's."""
    path = tmp_path / "journal"
    path.write_bytes(b"".join(map(line_of, records)))
    calls = Calls()
    replay = Replay({}, calls.left, lambda asked: None, ZERO)
    replay.read(path)
    assert not replay.set_aside
    return calls


def of(calls: Calls, made: Made, start: int = 0) -> dict:
    left = calls.call_of(request(ORDER), made)
    return call_record(KEY, left, ZERO, start, start)


def request(order: Order):
    class OfOrder:
        pass

    found = OfOrder()
    found.order = order
    return found


def test_it_goes_on_from_all_tokens_that_were_written_down(tmp_path):
    calls = Calls()
    first = of(calls, Made((5, 6), (-0.1, -0.2), "ab", (Span(0, "e", 3),), 0))
    rest = of(calls, Made((7,), (-0.3,), "c", (Span(0, "e", 3),), 1), start=2)
    assert (
        after_a_death(tmp_path, first, rest).begin(
            KEY, replace(ORDER, request_id=RequestId("run", "api-2")), 0.0
        )
        == MADE
    )


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_token_ids": (1, 2)},
        {"max_tokens": 49},
        {"params": {"temperature": 1.0, "seed": 8}},
        {"min_weight_version": 4},
    ],
    ids=str,
)
def test_another_call_of_its_name_begins_anew(tmp_path, change):
    calls = after_a_death(tmp_path, of(Calls(), MADE))
    assert calls.begin(KEY, replace(ORDER, **change), 0.0) is None
    assert not calls.left


def test_its_deadline_and_the_run_are_part_of_it_and_the_order_of_parameters_is_not(tmp_path):
    assert digest_of(ORDER) == digest_of(replace(ORDER, params={"seed": 7, "temperature": 1.0}, deadline=9.0))
    assert after_a_death(tmp_path, of(Calls(), MADE)).begin(("other", KEY[1]), ORDER, 0.0) is None
    assert after_a_death(tmp_path, of(Calls(), MADE)).begin(KEY, ORDER, ORDER.deadline + 1) is None


@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[2J", "x" * 4096])
def test_a_name_that_no_journal_can_hold_makes_no_call_of_it(name):
    assert key_of("run", name, 0) is None


def test_responses_of_one_call_have_names_of_their_own():
    assert {key_of("run", "task/0:1", index) for index in (0, 1)} == {KEY, ("run", "task/0:1-1")}


def test_what_ended_is_forgotten(tmp_path):
    assert not after_a_death(tmp_path, of(Calls(), MADE), ended_call_record(KEY)).left


def test_of_two_at_once_the_first_is_the_one_that_is_kept(tmp_path):
    calls = after_a_death(tmp_path, of(Calls(), MADE))
    assert calls.begin(KEY, ORDER, 0.0) == MADE
    other = replace(ORDER, request_id=RequestId("run", "api-2"))
    assert calls.begin(KEY, other, 0.0) is None
    assert not calls.end(KEY, other.request_id)
    assert calls.end(KEY, ORDER.request_id) and not calls.end(KEY, ORDER.request_id)


def test_what_begins_afresh_after_a_move_is_not_written_down():
    calls = Calls()
    assert calls.begin(KEY, replace(ORDER, params={"presence_penalty": 1.0}), 0.0) is None
    assert not calls.end(KEY, ORDER.request_id)
