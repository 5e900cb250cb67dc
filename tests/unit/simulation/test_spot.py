"""Traces of spot machines, and the fixed schedule."""

import itertools

import pytest

from rl_agent.errors import UsageError
from rl_agent.simulation.spot import Change, read_trace, step_schedule


def test_a_trace_is_read_in_order_of_time():
    lines = ["time_s,change,how", "600,-1,notice", "0,+1,", "900,-1,kill"]
    assert read_trace(lines, "trace.csv") == [
        Change(0.0, is_join=True),
        Change(600.0, is_join=False, with_notice=True),
        Change(900.0, is_join=False),
    ]


@pytest.mark.parametrize("line", ["x,+1,", "5,+2,", "-1,+1,", "5,-1,softly", "5"])
def test_a_bad_line_is_named(line):
    with pytest.raises(UsageError, match=r"trace\.csv:2: expected SECONDS"):
        read_trace(["time_s,change,how", line], "trace.csv")


def test_a_trace_without_its_header_is_refused():
    with pytest.raises(UsageError, match="expected a header"):
        read_trace(["0,+1"], "trace.csv")


def test_the_schedule_grows_to_four_machines_then_replaces_the_oldest():
    running, seen = 0, []
    for change in itertools.islice(step_schedule(), 10):
        running += 1 if change.is_join else -1
        seen.append((change.at_s, running))
    assert seen == [
        *((0.0, 1), (1800.0, 2), (3600.0, 3), (5400.0, 4)),
        *((7200.0, 3), (9000.0, 4), (10800.0, 3), (12600.0, 4), (14400.0, 3), (16200.0, 4)),
    ]
