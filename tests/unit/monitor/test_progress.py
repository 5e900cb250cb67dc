"""The progress of a rollout as a line."""

import os
import pty
import sys
from dataclasses import replace

import pytest

from rl_agent.monitor.progress import LINE_CHARACTERS, LiveLine, RolloutSnapshot, duration

SNAPSHOT = RolloutSnapshot(
    split="train",
    iteration=3,
    submitted=100,
    done=60,
    running=8,
    not_completed=0,
    reward_mean=0.5,
    response_tokens=1000,
    done_here=20,
    elapsed_s=10.0,
)


def test_a_progress_line_has_what_matters_first():
    assert SNAPSHOT.line() == "train 3 60/100  reward 0.500  100 tok/s  0:20 left  8 running"
    assert SNAPSHOT.line(has_bar=True).startswith("train 3 ▇▇▇▇▇▇▁▁▁▁ 60/100  reward 0.500")


def test_a_progress_line_before_the_first_episode_has_no_estimate():
    begun = replace(SNAPSHOT, done=0, done_here=0, reward_mean=None)
    assert begun.line() == "train 3 0/100  100 tok/s  8 running"


def test_a_progress_line_names_failures_by_kind_the_most_frequent_first():
    failed = replace(SNAPSHOT, not_completed=4, failures={"JudgeOutage": 1, "EngineError": 3})
    assert "4 failed: 3 EngineError, 1 JudgeOutage" in failed.line()


def test_a_progress_line_ends_with_the_commonest_failure_cut_to_fit():
    failed = replace(SNAPSHOT, commonest_failures=("3 x EngineError: no room" + "!" * 100,))
    assert "8 running  3 x EngineError: no room" in failed.line()
    assert len(failed.line()) == LINE_CHARACTERS and failed.line().endswith("…")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_durations_read_like_a_clock(seconds, text):
    assert duration(seconds) == text


def test_a_terminal_shows_one_line_that_is_rewritten_and_removed(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("TERM", "xterm")
        with LiveLine() as live:
            live.show("train 1 ▇▁ 1/2")
            live.show("train 1 ▇▇ 2/2")
        stderr.write("end")
        stderr.flush()
        written = b""
        while not written.endswith(b"end"):
            written += screen.read(4096)
    sent = written.decode()
    assert sent.index("1/2") < sent.index("2/2") < sent.rindex("\x1b[2K") < sent.index("end")
    assert "\n" not in sent[: sent.index("2/2")]


def test_a_file_gets_no_line_that_is_rewritten(capsys):
    with LiveLine() as live:
        live.show("train 1 1/2")
    assert not live.is_shown and capsys.readouterr().err == ""
