"""The commonest reasons of failures are named, each by its first message."""

from rl_agent.rollout.collector import failures
from rl_agent.rollout.collector.failures import FailureReasons, TracebackLog, is_worth_a_line, log_of_agent
from rl_agent.types import Failure


def test_messages_that_differ_in_numbers_are_one_reason():
    reasons = FailureReasons()
    for tokens in (512, 514, 530):
        reasons.add(Failure("EngineError", f"{tokens} tokens are too many"))
    reasons.add(Failure("TimeoutError", "slow"))

    assert reasons.commonest() == ["3 x EngineError: 512 tokens are too many", "1 x TimeoutError: slow"]


def test_a_message_that_holds_control_characters_stays_one_harmless_line():
    reasons = FailureReasons()
    reasons.add(Failure("EnvironmentFailure", "first\nsecond \x1b[2J"))
    assert reasons.commonest() == ["1 x EnvironmentFailure: first\\nsecond \\x1b[2J"]


def test_each_failure_says_how_often_its_reason_has_occurred():
    reasons = FailureReasons()
    messages = ("no place 1", "no place 2", "slow", "no place 3")
    assert [reasons.add(Failure("EngineError", message)) for message in messages] == [1, 2, 1, 3]


def test_a_reason_that_all_episodes_share_gets_few_lines():
    assert [count for count in range(1, 5000) if is_worth_a_line(count)] == [1, 2, 3, 10, 100, 1000]


def test_a_log_keeps_one_traceback_for_each_reason(tmp_path):
    log = TracebackLog(tmp_path / "environments.log")
    assert log.is_empty and not log.path.exists()
    for number in range(3):
        try:
            raise ValueError(f"bad {number}")
        except ValueError as error:
            log.add(f"sum-{number}:0:0", Failure("EnvironmentFailure", str(error)), error)
    text = log.path.read_text()
    assert text.count("Traceback") == 1 and text.startswith("sum-0:0:0\nTraceback")
    assert "ValueError: bad 0" in text and "test_failures.py" in text
    assert not log.is_empty


def test_a_log_of_agents_that_has_become_large_is_kept_beside_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(failures, "MAX_AGENT_LOG_BYTES", 10)
    log = tmp_path / "agents.log"
    for text in ("first: a long line\n", "second", "third: \ud800"):
        log_of_agent(log, text)
    assert (tmp_path / "agents.1.log").read_text() == "first: a long line\n"
    assert log.read_text() == "second\nthird: \\ud800\n"
