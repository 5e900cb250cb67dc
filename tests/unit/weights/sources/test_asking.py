"""Sources are asked one after the other, each for so long at most."""

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
    return first_answer(sources, question, Deadline.after(timeout_s), stop, note)


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


def test_a_source_that_takes_too_long_gives_way_to_the_next(sender, never, monkeypatch):
    monkeypatch.setattr("rl_agent.weights.sources.asking.ANSWER_S", 0.1)
    slow = StoreSource(sender, "slow", {"manifest": never})
    assert ask(slow, StoreSource(sender)) == sender.newest.manifest


def test_questions_unanswered_at_the_deadline_are_left_behind(sender, never):
    failures = {}
    stuck = StoreSource(sender, "stuck", {"manifest": never})
    assert ask(stuck, failures=failures, timeout_s=0.1) is None
    assert "left behind" in failures["stuck"]
