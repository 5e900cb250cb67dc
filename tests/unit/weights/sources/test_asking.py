"""Sources are asked one after the other, and beside one another where one takes its time."""

import threading

from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.sources.asking import first_answer
from tests.unit.weights.weight_sources import StoreSource, raising


def question(connection, deadline):
    return connection.manifest(1, None, deadline)


def ask(*sources, failures=None, timeout_s=30.0):
    def note(source, failure):
        if failures is not None:
            failures[str(source)] = str(failure)

    stop = threading.Event()
    return first_answer(sources, question, Deadline.after(timeout_s), stop, note, within_s=30.0)


def test_a_question_goes_round_in_order_until_one_answers(sender):
    opened, closed, failures = [], [], {}

    def source(name, **lies):
        lies = {"open": lambda _: opened.append(name), "close": lambda _: closed.append(name)} | lies
        return StoreSource(sender, name, lies)

    broken = source("broken", manifest=raising(TypeError("no")))
    manifest = ask(broken, source("right"), source("not asked"), failures=failures)
    assert manifest == sender.newest.manifest
    assert opened == closed == ["broken", "right"]
    assert failures == {"broken": "TypeError: no"}
    assert ask(broken, failures=failures) is None


def test_another_is_asked_beside_one_that_was_reached_and_takes_its_time(sender, monkeypatch):
    monkeypatch.setattr("rl_agent.weights.sources.asking.PATIENCE_S", 0.0)
    slow, failures = StoreSource(sender, "slow"), {}

    def until_interrupted(_):
        assert slow.connections[-1].interrupted.wait(60)
        raise ConnectionAbortedError("interrupted")

    slow.lies["manifest"] = until_interrupted
    assert ask(slow, StoreSource(sender), failures=failures) == sender.newest.manifest
    assert not failures


def test_an_unreachable_peer_is_awaited_because_it_is_to_be_left_out(sender, monkeypatch):
    """Else the fetch that follows would wait for it, once for each try."""
    monkeypatch.setattr("rl_agent.weights.sources.asking.PATIENCE_S", 0.0)
    is_asked, failures = threading.Event(), {}

    def out_of_reach(_):
        assert not is_asked.wait(0.2)
        raise TimeoutError("timed out")

    other = StoreSource(sender, lies={"open": lambda _: is_asked.set()})
    assert ask(StoreSource(sender, "far", {"open": out_of_reach}), other, failures=failures) is not None
    assert failures == {"far": "timed out"}


def test_questions_unanswered_at_the_deadline_are_left_behind(sender, never):
    failures = {}
    stuck = StoreSource(sender, "stuck", {"manifest": never})
    assert ask(stuck, failures=failures, timeout_s=0.1) is None
    assert "left behind" in failures["stuck"]
