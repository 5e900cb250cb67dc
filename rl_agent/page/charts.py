"""Computes the places of lines, dots, bars and ticks in diagrams. Pure; the templates draw them as SVG."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_agent.monitor.curves import Curve
from rl_agent.monitor.report import TimelineSpan

WIDTH, HEIGHT = 480.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 10.0, 10.0, 26.0
MAX_DRAWN = 400
"""Points of a line; of more, the lowest and the highest of each stretch are drawn."""
MAX_DOTS = 60
MAX_BARS = 300
GANTT_WIDTH, LABEL_WIDTH, ROW_HEIGHT = 960.0, 190.0, 22.0


@dataclass(frozen=True, slots=True)
class AxisTick:
    """A mark of an axis: where, and its number."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a curve with what it says when one looks at it."""

    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class Line:
    """A drawn curve."""

    label: str
    points: str
    """The points as SVG's `polyline` takes them."""
    dots: tuple[Dot, ...]
    last: str
    """Its newest value."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A diagram of some curves."""

    title: str
    x_name: str
    lines: tuple[Line, ...]
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """The episodes of a histogram in one range."""

    x: float
    y: float
    width: float
    height: float
    words: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of episodes by ranges of their reward."""

    columns: tuple[Column, ...]
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A span of the timeline."""

    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class GanttRow:
    """All spans of one name, on one line."""

    name: str
    y: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Gantt:
    """The timeline as bars over time."""

    rows: tuple[GanttRow, ...]
    ticks: tuple[AxisTick, ...]
    height: float
    left_out: int


def number(value: float) -> str:
    """Format a number for the eye: 0.485, 1,234, 1.2e-06."""
    if value != value or math.isinf(value):
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{value:,.0f}"
    return (
        f"{value:.3f}"
        if 0.001 <= abs(value) < 1000
        else f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:.2e}"
    )


def short(value: float) -> str:
    """Format a number for an axis, where there is little room: 0.485, 250,000, 1.5M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size <= abs(value) < 1000 * size:
            return f"{value / size:.4g}{unit}"
    return number(value) if abs(value) < 1e6 else f"{value:.2e}"


def chart(
    title: str, x_name: str, curves: Sequence[Curve], *, counts: bool = False, is_log: bool = False
) -> Chart | None:
    """Lay out some curves, of whole numbers if they are counts; None if no point can be drawn.

    A logarithmic vertical axis leaves out what is not above 0.
    """
    scaled, unscaled = (math.log10, _power) if is_log else (float, float)
    shown = [
        Curve(
            curve.label,
            tuple(
                (x, scaled(y))
                for x, y in curve.points
                if math.isfinite(x) and math.isfinite(y) and not (is_log and y <= 0)
            ),
        )
        for curve in curves
    ]
    points = [point for curve in shown for point in curve.points]
    if not points:
        return None
    x_ticks = ticks(min(x for x, _ in points), max(x for x, _ in points), 6, whole=True)
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points), 5, whole=counts)
    x_low, x_high = min(x_ticks[0], *(x for x, _ in points)), max(x_ticks[-1], *(x for x, _ in points))
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def x_at(x: float) -> float:
        return round(LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT), 1)

    def y_at(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM), 1)

    lines = []
    for curve in shown:
        if not curve.points:
            continue
        drawn = thinned(curve.points)
        dots = tuple(
            Dot(x_at(x), y_at(y), f"{curve.label}: {number(unscaled(y))} at {x_name} {number(x)}")
            for x, y in (drawn if len(drawn) <= MAX_DOTS else drawn[-1:])
        )
        line = " ".join(f"{x_at(x)},{y_at(y)}" for x, y in drawn)
        lines.append(Line(curve.label, line, dots, number(unscaled(curve.points[-1][1]))))
    return Chart(
        title,
        x_name,
        tuple(lines),
        tuple(AxisTick(x_at(x), short(x)) for x in x_ticks),
        tuple(AxisTick(y_at(y), short(unscaled(y))) for y in y_ticks),
    )


def histogram(edges: Sequence[float], counts: Mapping[int, int]) -> Histogram:
    """Lay out how many episodes lie between each of the edges, which are ascending, and the next."""
    y_ticks = ticks(0, max(counts.values()), 5, whole=True)
    width, height = (WIDTH - LEFT - RIGHT) / (len(edges) - 1), HEIGHT - TOP - BOTTOM
    columns = []
    for place, count in sorted(counts.items()):
        tall = round(count / y_ticks[-1] * height, 1)
        words = f"{count:,} from {number(edges[place])} to {number(edges[place + 1])}"
        x = round(LEFT + place * width + 1, 1)
        columns.append(Column(x, round(HEIGHT - BOTTOM - tall, 1), round(width - 2, 1), tall, words))
    shown = range(0, len(edges), math.ceil(len(edges) / 6))
    return Histogram(
        tuple(columns),
        tuple(AxisTick(round(LEFT + n * width, 1), short(edges[n])) for n in shown),
        tuple(AxisTick(round(HEIGHT - BOTTOM - y / y_ticks[-1] * height, 1), short(y)) for y in y_ticks),
    )


def _power(exponent: float) -> float:
    """Return 10 to the power of `exponent`."""
    return float(f"{10.0**exponent:.12g}")


def thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return few enough points to draw, with all peaks and the last one."""
    if len(points) <= MAX_DRAWN:
        return points
    stretch = math.ceil(len(points) / (MAX_DRAWN // 2))
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(points), stretch):
        part = points[begin : begin + stretch]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*kept, points[-1]]


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return round numbers that enclose a range, at least two."""
    size = max(abs(low), abs(high))
    if high - low <= size * 1e-9:  # less than a float tells apart
        margin = max(1.0, size * 1e-6) if whole else size * 0.5 or 0.5
        low, high = (low, high + margin) if whole or not size else (low - margin, high + margin)
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    if whole:
        step = max(1.0, step)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def gantt(spans: Sequence[TimelineSpan]) -> Gantt | None:
    """Lay out the newest spans of a timeline; None if there are none."""
    shown = sorted(spans, key=lambda span: span.start)[-MAX_BARS:]
    if not shown:
        return None
    start = min(span.start for span in shown)
    total = max(max(span.end for span in shown) - start, 1e-3)
    scale = (GANTT_WIDTH - LABEL_WIDTH - RIGHT) / total
    rows = []
    for index, name in enumerate(dict.fromkeys(span.name for span in shown)):
        bars = tuple(
            Bar(
                round(LABEL_WIDTH + (span.start - start) * scale, 1),
                round(max((span.end - span.start) * scale, 1.5), 1),
                f"{name}, iteration {span.iteration}: {duration(span.end - span.start)}",
            )
            for span in shown
            if span.name == name
        )
        rows.append(GanttRow(name, index * ROW_HEIGHT, bars))
    return Gantt(tuple(rows), time_ticks(total, scale), len(rows) * ROW_HEIGHT, len(spans) - len(shown))


def time_ticks(total_s: float, scale: float) -> tuple[AxisTick, ...]:
    """Return round times from 0 on, `scale` pixels per second behind the labels."""
    step, unit = next(
        ((size, unit) for size, unit in _TIME_STEPS if total_s / size <= 9), (total_s / 6, 3600.0)
    )
    names = {1.0: "s", 60.0: "min", 3600.0: "h"}
    marks = (index * step for index in range(int(total_s / step) + 1))
    return tuple(
        AxisTick(round(LABEL_WIDTH + at * scale, 1), f"{number(round(at / unit, 2))} {names[unit]}")
        for at in marks
    )


_TIME_STEPS = tuple(
    (size * unit, unit)
    for unit, sizes in (
        (1.0, (1, 2, 5, 10, 20)),
        (60.0, (1, 2, 5, 10, 20)),
        (3600.0, (1, 2, 5, 10, 20, 50, 100)),
    )
    for size in sizes
)


def duration(seconds: float) -> str:
    """Format seconds for the eye: 0.27 s, 12.3 s, 4 min 05 s, 2 h 03 min."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02} min" if hours else f"{minute} min {second:02} s"
