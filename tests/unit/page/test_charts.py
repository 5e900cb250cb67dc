"""Lines, bars and ticks are drawn inside the diagram, at round numbers, with every peak."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.monitor.curves import Curve
from rl_agent.monitor.report import TimelineSpan
from rl_agent.page import charts
from rl_agent.page.charts import (
    HEIGHT,
    MAX_BARS,
    MAX_DRAWN,
    WIDTH,
    chart,
    duration,
    gantt,
    number,
    short,
    thinned,
    ticks,
)

FINITE = st.floats(-1e9, 1e9)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.4851, "0.485"),
        (1234.0, "1,234"),
        (1.2e-6, "1.20e-06"),
        (3.0, "3"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_numbers_are_short(value, words):
    assert number(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.27, "0.27 s"), (12.3, "12.3 s"), (245, "4 min 05 s"), (7380, "2 h 03 min")]
)
def test_durations_are_short(seconds, words):
    assert duration(seconds) == words


@given(low=FINITE, high=FINITE, most=st.integers(2, 9), whole=st.booleans())
def test_ticks_are_few_ascending_and_enclose_the_range(low, high, most, whole):
    low, high = min(low, high), max(low, high)
    values = ticks(low, high, most, whole=whole)
    step = values[1] - values[0]
    assert 2 <= len(values) <= most + 3 and values == sorted(set(values))
    assert values[0] <= low + step * 1e-6 and values[-1] >= high - step * 1e-6
    assert not whole or step >= 1


@given(points=st.lists(st.tuples(st.floats(0, 1e6), FINITE), min_size=1, max_size=40))
def test_every_point_is_drawn_inside_the_diagram(points):
    drawn = chart("loss", "step", [Curve("a", tuple(sorted(points)))])
    places = [tuple(map(float, pair.split(","))) for pair in drawn.lines[0].points.split()]
    assert all(-0.1 <= x <= WIDTH + 0.1 and -0.1 <= y <= HEIGHT + 0.1 for x, y in places)
    assert len(places) == len(points)


def test_a_curve_without_a_finite_point_is_no_diagram():
    assert chart("loss", "step", [Curve("a", ((1.0, math.nan), (2.0, math.inf)))]) is None
    assert chart("loss", "step", []) is None


def test_a_long_curve_keeps_its_peaks_and_its_last_point():
    points = [(float(x), 0.0) for x in range(10 * MAX_DRAWN)]
    points[1234], points[777] = (1234.0, 9.0), (777.0, -9.0)
    kept = thinned(points)
    assert len(kept) <= MAX_DRAWN + 1 and {points[1234], points[777], points[-1]} <= set(kept)


def test_spans_of_one_name_share_a_row_and_older_ones_are_counted():
    spans = [
        TimelineSpan(("rollout", "update")[n % 2], n, n * 10.0, n * 10.0 + 5) for n in range(MAX_BARS + 7)
    ]
    chart = gantt(spans)
    assert [row.name for row in chart.rows] == ["update", "rollout"] and chart.left_out == 7
    assert sum(len(row.bars) for row in chart.rows) == MAX_BARS
    assert max(bar.x + bar.width for row in chart.rows for bar in row.bars) <= charts.GANTT_WIDTH
    assert gantt([]) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.485, "0.485"),
        (250_000, "250,000"),
        (1_500_000, "1.5M"),
        (-2e9, "-2G"),
        (3e12, "3T"),
        (1e18, "1.00e+18"),
    ],
)
def test_a_number_at_an_axis_has_room_there(value, words):
    assert short(value) == words and len(short(value)) < 9
