"""A call of the API that is sent again after its manager's death goes on where the journal has it."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rl_agent.pool.runtime.calls import Calls, digest_of, key_of
from rl_agent.pool.runtime.journal import Journal
from rl_agent.pool.runtime.journal_rows import CallIdentity, progress_end, progress_writes
from rl_agent.pool.runtime.restore import Restore
from rl_agent.pool.runtime.results import Run
from rl_agent.pool.scheduler.records import Order, PartialResponse, Request, RequestId, Span

NOW = time.monotonic()
ORDER = Order(RequestId("run", "api-1"), (1, 2, 3), 50, {"temperature": 1.0, "seed": 7}, deadline=NOW + 1000)
KEY = ("call", "run", "task/0:1-0")
MADE = PartialResponse((5, 6, 7), (-0.1, -0.2, -0.3), "abc", (Span(0, "e", 3),), 1)


class Submissions:
    """A pool that notes the responses with which requests are submitted to it."""

    def __init__(self, now=NOW):
        self.responses = []
        self.clock = lambda: now

    def handle(self, event):
        self.responses.append(event.response)


def begun(calls, key=KEY, order=ORDER, now=NOW):
    """The tokens with which the pool begins a request."""
    calls._pool = Submissions(now)
    calls.begin(key, order)
    return calls._pool.responses[0]


def after_a_death(tmp_path, *writes) -> Calls:
    """The next manager's."""
    journal = Journal(tmp_path / "journal")
    for some in writes:
        journal.write(some)
    restore = Restore(journal, NOW, lambda name: Run(name, 0))
    restore.read()
    journal._connection.close()
    calls = Calls(Submissions(), SimpleNamespace(append=lambda writes: None))
    calls.left = restore.calls
    return calls


def of(response: PartialResponse = MADE, start: int = 0) -> list:
    texts, spans = [response.text], list(response.spans)
    request = Request(ORDER, 0, 0.0, texts=texts, spans=spans, moves=response.moves)
    request.token_ids.extend(response.token_ids)
    request.logprobs.extend(response.logprobs)
    identity = CallIdentity(digest_of(ORDER), time.time() - NOW + ORDER.deadline)
    return progress_writes(KEY, request, start, start, identity)


def test_it_goes_on_from_all_tokens_that_were_written_down(tmp_path):
    first = of(PartialResponse((5, 6), (-0.1, -0.2), "ab", (Span(0, "e", 3),), 0))
    again = replace(ORDER, request_id=RequestId("run", "api-2"))
    assert begun(after_a_death(tmp_path, first, of(start=2)), order=again) == MADE


def test_what_was_thrown_away_is_not_gone_on_from(tmp_path):
    longer = of(PartialResponse((1, 2, 3, 4), (0.0,) * 4, "wxyz", (Span(0, "e", 2),), 0))
    tail = of(PartialResponse((1, 2, 3, 4, 9), (0.0,) * 5, "wxyz9", (Span(0, "e", 2),), 0), start=4)
    assert begun(after_a_death(tmp_path, longer, tail, of())) == MADE


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
    calls = after_a_death(tmp_path, of())
    assert begun(calls, order=replace(ORDER, **change)) is None
    assert not calls.left


def test_call_identity_has_run_and_deadline_but_no_parameter_order(tmp_path):
    assert digest_of(ORDER) == digest_of(replace(ORDER, params={"seed": 7, "temperature": 1.0}, deadline=9.0))
    assert begun(after_a_death(tmp_path, of()), key=("call", "other", KEY[2])) is None
    assert begun(after_a_death(tmp_path, of()), now=ORDER.deadline + 1) is None


@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[2J", "x" * 4096])
def test_a_name_that_no_journal_can_hold_makes_no_call_of_it(name):
    assert key_of("run", name, 0) is None


def test_responses_of_one_call_have_names_of_their_own():
    assert {key_of("run", "task/0:1", index) for index in (0, 1)} == {KEY, ("call", "run", "task/0:1-1")}


def test_what_ended_is_forgotten(tmp_path):
    assert not after_a_death(tmp_path, of(), [progress_end(KEY)]).left


def test_of_two_at_once_the_first_is_the_one_that_is_kept(tmp_path):
    calls = after_a_death(tmp_path, of())
    assert begun(calls) == MADE
    other = replace(ORDER, request_id=RequestId("run", "api-2"))
    assert begun(calls, order=other) is None
    calls.end(KEY, other.request_id)
    assert calls._open == {KEY: ORDER.request_id}
    calls.end(KEY, ORDER.request_id)
    assert not calls._open


def test_what_begins_afresh_after_a_move_is_not_written_down(tmp_path):
    calls = after_a_death(tmp_path)
    assert begun(calls, order=replace(ORDER, params={"presence_penalty": 1.0})) is None
    assert not calls._open


def test_a_manager_that_ends_keeps_what_its_calls_have_got(tmp_path):
    calls = after_a_death(tmp_path, of())
    begun(calls)
    calls.is_over = True
    calls.end(KEY, ORDER.request_id)
    assert calls._open
