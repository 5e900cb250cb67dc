"""Messages between callers and hosts: what is sent is what arrives, and nothing else is taken."""

import msgspec
import pytest

from rl_agent.env.remote import wire
from rl_agent.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentLost,
    EnvironmentRefusal,
    EnvironmentUnavailable,
)
from rl_agent.types import Observation, StepResult, Task

TASK = Task("t", "2+2=", "math", "easy", answer="4", extra={"seed": 1, "deep": {"a": [1, None, "x"]}})


@pytest.mark.parametrize(
    "question",
    [
        wire.Make(0, 1, "math", 2),
        wire.Reset(1, 1, TASK, 2**40),
        wire.Act(2, 1, "go \x00 é"),
        wire.CloseInstance(3, 1),
        wire.Cancel(2),
        wire.Ping(),
    ],
)
def test_a_question_arrives_as_it_was_sent(question):
    assert wire.read_question(wire.encode(question)) == question


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["Act", 1, 1]),
        msgspec.msgpack.encode(["Act", -1, 1, "x"]),
        msgspec.msgpack.encode(["Act", True, 1, "x"]),
        msgspec.msgpack.encode(["os.system", "ls"]),
        msgspec.msgpack.encode(["Make", 1, 1, ""]),
        msgspec.msgpack.encode(["Make", 1, 1, "math", {"a": 1}]),
        b"\x91" * 100_000,
    ],
)
def test_malformed_questions_are_refused(frame):
    with pytest.raises(wire.WireError):
        wire.read_question(frame)


@pytest.mark.parametrize("rewards", [{}, {"format": 0.5}])
def test_a_step_arrives_as_it_was_made(rewards):
    result = StepResult(Observation("t"), 1.0, done=True, rewards=rewards)
    answer = wire.read_answer(wire.encode(wire.stepped_of(7, result, wire.seen_of(result.observation))))
    assert isinstance(answer, wire.Stepped)
    assert wire.result_of(answer, ()) == result


@pytest.mark.parametrize(
    "answer",
    [
        ["Stepped", 1, ["t", [], []], float("nan"), True, False, False, False],
        ["Stepped", 1, ["t", [], []], 1.0, True, False, False, False, {"a": float("nan")}],
        ["Stepped", 1, ["t", [], []], 1.0, True, False, False, False, {str(n): 1.0 for n in range(21)}],
        ["Stepped", 1, [5, [], []], 1.0, True, False, False, False],
        ["Shown", 1, ["t", [], [b"x"] * (wire.MAX_IMAGES + 1)]],
        ["Failed", 1, "because", "x"],
        ["Failed", 1, "lost", "x" * (wire.MAX_MESSAGE + 1)],
    ],
)
def test_malformed_answers_are_refused(answer):
    with pytest.raises(wire.WireError):
        wire.read_answer(msgspec.msgpack.encode(answer))


def test_a_frame_that_is_too_long_is_neither_sent_nor_read(monkeypatch):
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 100)
    with pytest.raises(EnvironmentRefusal, match="at most 100"):
        wire.encode(wire.Act(1, 1, "x" * 100))
    with pytest.raises(wire.WireError):
        wire.read_question(b"x" * 101)


def test_an_observation_that_is_too_large_is_refused():
    with pytest.raises(EnvironmentRefusal, match="characters"):
        wire.seen_of(Observation("x" * (wire.MAX_TEXT + 1)))
    with pytest.raises(EnvironmentRefusal, match="images"):
        wire.seen_of(Observation("", ("a",) * (wire.MAX_IMAGES + 1)))


@pytest.mark.parametrize(
    ("raised", "arrives", "words"),
    [
        (ValueError("oh"), EnvironmentFailure, "ValueError: oh"),
        (KeyboardInterrupt(), EnvironmentFailure, "KeyboardInterrupt"),
        (EnvironmentFailure("oh"), EnvironmentFailure, "oh"),
        (EnvironmentRefusal("no page"), EnvironmentRefusal, "no page"),
        (ConfigError("no key"), EnvironmentRefusal, "ConfigError: no key"),
        (EnvironmentUnavailable("no browser"), EnvironmentUnavailable, "no browser"),
        (EnvironmentLost("gone"), EnvironmentLost, "gone"),
        (ValueError("\ud800" + "x" * 10**6), EnvironmentFailure, "ValueError: \\ud800xxx"),
    ],
)
def test_an_error_of_an_environment_arrives_by_its_kind(raised, arrives, words):
    answer = wire.read_answer(wire.encode(wire.failed_of(1, raised)))
    error = wire.error_of(answer)
    assert type(error) is arrives
    assert str(error).startswith(words)


def test_a_suspect_of_a_crash_stays_one():
    lost = wire.failed_of(1, EnvironmentLost("gone", is_suspect=True))
    assert wire.error_of(lost).is_suspect
    assert not wire.error_of(wire.failed_of(1, EnvironmentLost("gone"))).is_suspect


def test_the_traceback_of_an_environment_arrives_with_its_error():
    try:
        raise ZeroDivisionError("\ud800" * 9 + "x" * wire.MAX_TRACEBACK)
    except ZeroDivisionError as error:
        long = wire.read_answer(wire.encode(wire.failed_of(1, error)))
        error.args = ("of a user",)
        (note,) = wire.error_of(wire.read_answer(wire.encode(wire.failed_of(1, error)))).__notes__
    assert len(long.traceback) == wire.MAX_TRACEBACK
    assert "test_wire.py" in note and "ZeroDivisionError: of a user" in note
    assert not hasattr(wire.error_of(wire.failed_of(1, EnvironmentLost("gone"))), "__notes__")
