"""The progress of a rollout as a line and as a table."""

import io
from dataclasses import replace

import pytest

from rl_agent.monitor.progress import RolloutSnapshot, SlowEpisode, duration, line

SNAPSHOT = RolloutSnapshot(
    split="train",
    iteration=3,
    submitted=100,
    done=60,
    running=8,
    finishing=2,
    at_engine=5,
    engine_limit=32,
    queued=0,
    not_completed=4,
    reward_mean=0.5,
    response_tokens=1000,
    done_here=20,
    elapsed_s=10.0,
    slowest=(SlowEpisode("task-1:0:0", 3, 9.0),),
)


def test_a_progress_line_says_how_far_how_fast_and_how_long():
    assert line(SNAPSHOT) == (
        "train iteration 3: 60/100 episodes done (4 of them failed), 8 running, 2 being scored and saved,"
        " 5 requests generating (at most 32), 0 waiting, reward 0.500, 100 tokens/s, 0:10 elapsed, 0:20 left"
    )


def test_a_progress_line_names_failures_by_kind_the_most_frequent_first():
    failed = replace(SNAPSHOT, failures={"TimeoutError": 1, "EngineError": 3})
    assert "(4 of them failed: 3 EngineError, 1 TimeoutError)" in line(failed)


def test_a_progress_line_ends_with_the_commonest_failure():
    failed = replace(SNAPSHOT, commonest_failures=("3 x EngineError: no room", "1 x TimeoutError: slow"))
    assert line(failed).endswith("0:20 left; most failed like this: 3 x EngineError: no room")


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "?"), (0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_durations_read_like_a_clock(seconds, text):
    assert duration(seconds) == text


def test_the_table_shows_the_states_and_the_slowest_episode():
    from rich.console import Console

    from rl_agent.monitor.progress import _table

    console = Console(width=160, record=True, file=io.StringIO())
    console.print(_table(SNAPSHOT))
    shown = console.export_text()

    assert "task-1:0:0" in shown
    assert "5 generating (at most 32)" in shown
    assert "60/100" in shown
