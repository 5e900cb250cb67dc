"""Whatever a source does is its own failure: the fetch goes on with others, and ends in time without them."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.sources.source import GuardedConnection, SourceFailure, one_line, reason_of
from rl_agent.weights.store.store import FULL
from tests.support.weight_transfers import announced
from tests.unit.weights.weight_sources import StoreSource, raising, receiving

ERRORS = [TypeError("list indices must be integers"), MemoryError(), StopIteration()]


@pytest.fixture
def receive(tmp_path):
    with receiving(tmp_path, streams_per_source=1, retries=1) as (function, _, _):
        yield function


@pytest.mark.parametrize("method", ["open", "manifest", "recommend", "read_piece", "close"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_of_any_kind_is_the_failure_of_its_source_alone(sender, receive, method, error):
    broken = StoreSource(sender, "broken", {method: raising(error)})
    snapshot, _ = receive(announced(sender.newest), broken, StoreSource(sender))
    assert snapshot.map(FULL) == sender.newest.map(FULL)


@pytest.mark.parametrize("method", ["open", "manifest", "recommend", "read_piece"])
def test_the_only_source_fails_with_the_kind_of_what_it_did(sender, receive, method):
    broken = StoreSource(sender, "broken", {method: raising(TypeError("x" * 10_000 + "\x1b[2J"))})
    with pytest.raises(WeightsError, match=r"broken: TypeError: x{100,300}$") as failure:
        receive(announced(sender.newest), broken)
    assert str(failure.value).isprintable()


@pytest.mark.parametrize("index", [-1, 2**70, 0])
def test_a_proposal_of_a_piece_that_is_not_wanted_is_refused(sender, index):
    lying = GuardedConnection(StoreSource(sender, "lying", {"recommend": lambda *_: [1, index]}))
    with pytest.raises(SourceFailure, match="that do not exist or were not requested"):
        lying.recommend(1, FULL, np.array([False, True, True]), 3, 0.0, Deadline.after(10))


@given(st.text(), st.sampled_from([OSError, WeightsError, ValueError]))
def test_a_reason_is_one_short_printable_line(text, kind):
    reason = reason_of(kind(text))
    assert reason.isprintable()
    assert 0 < len(reason) <= 300


@pytest.mark.parametrize("method", ["open", "recommend", "read_piece", "close"])
def test_a_source_that_cannot_be_interrupted_holds_up_nothing(sender, receive, never, method):
    stuck = StoreSource(sender, "stuck", {method: never}, is_cut_at_once=False)
    snapshot, _ = receive(announced(sender.newest), StoreSource(sender), stuck)
    assert snapshot.map(FULL) == sender.newest.map(FULL)


@pytest.mark.parametrize("method", ["open", "manifest", "recommend", "read_piece"])
def test_a_stop_or_deadline_ends_a_fetch_with_an_uninterruptible_source(sender, receive, never, method):
    stuck = StoreSource(sender, "stuck", {method: never}, is_cut_at_once=False)
    with pytest.raises(WeightsError, match=r"left behind|deadline"):
        receive(announced(sender.newest), stuck, timeout_s=0.2)
    stop = threading.Event()

    def stopped(*arguments):
        stop.set()
        return never(*arguments)

    stuck.lies[method] = stopped
    with pytest.raises(WeightsError, match="cancelled"):
        receive(announced(sender.newest), stuck, stop=stop)


def test_foreign_words_are_one_short_line_without_escapes():
    assert one_line("a\x1b[31m\nb\u2028c" + "x" * 999, 12) == "a [31m b cxx"
