"""Plots the metrics that the run's form names, of all in `metrics.jsonl`, as its query says.

?plot=train/rollout_s test/rollout_s&over=hour&smoothing=0.9&log=1 ─► the file, read again ─► one diagram
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rl_agent.monitor import metrics
from rl_agent.monitor.curves import Curve, Panel, curves_of
from rl_agent.page.charts import Chart, chart
from rl_agent.page.run_folder import Numbers, RunFolder

OVER = {"iteration": "iteration", "update step": "update_step", "hour": "time"}
"""The metric of each horizontal axis, by its name in the form."""
MAX_NAMES = 6
"""A diagram has as many colours."""
MAX_TEXT = 2000
MAX_SMOOTHING = 0.999


@dataclass(frozen=True, slots=True)
class Plot:
    """The form, as it was filled in."""

    text: str = ""
    over: str = ""
    """A key of `OVER`; empty: update steps if every metric has them, else iterations."""
    smoothing: float = 0.0
    """Weight of the points before in an exponential mean; 0 draws the points as they are."""
    is_log: bool = False


def read_plot(form: Mapping[str, str]) -> Plot:
    """Return what the query of the run's page asks to plot; an option that cannot be read is its default."""
    try:
        smoothing = float(form.get("smoothing") or 0)
    except ValueError:
        smoothing = 0.0
    over = form.get("over", "")
    return Plot(
        form.get("plot", "").strip()[:MAX_TEXT],
        over if over in OVER else "",
        min(smoothing, MAX_SMOOTHING) if smoothing > 0 else 0.0,
        form.get("log") == "1",
    )


def plot_values(run: RunFolder, numbers: Numbers, plot: Plot) -> dict[str, Any]:
    """Return the form, the names to complete, the diagram (None without a point), and what is not drawn."""
    recorded = sorted(name for name, value in numbers.latest.items() if isinstance(value, int | float))
    names = list(dict.fromkeys(_names(plot.text, recorded)))
    known = [name for name in names if name in recorded][:MAX_NAMES]
    drawn = _drawn(run, known, plot) if known else None
    labels = [line.label for line in drawn.lines] if drawn else []
    problems = [f"{name}: {_problem(name, known, recorded)}" for name in names if name not in labels]
    before = f"{', '.join(known)}, " if known else ""
    return {
        "form": plot,
        "axes": list(OVER),
        # A browser completes the whole text of a box: further names follow those that are drawn.
        "completions": recorded + [before + name for name in recorded if before and name not in known],
        "chart": drawn,
        "problems": problems,
    }


def _problem(name: str, known: list[str], recorded: list[str]) -> str:
    if name in known:
        return "has no point that can be drawn over this axis on this scale"
    return f"is not drawn: {MAX_NAMES} at a time are" if name in recorded else "no number has this name"


def _names(text: str, recorded: list[str]) -> Iterator[str]:
    """Yield the names in a text, between commas or spaces; a recorded name may have spaces itself."""
    for part in filter(None, map(str.strip, text.split(","))):
        yield from [part] if part in recorded else part.split()


def _drawn(run: RunFolder, names: list[str], plot: Plot) -> Chart | None:
    records = list(metrics.read(run.paths.metrics))
    labels = {name: name for name in names}
    for over in [plot.over] if plot.over else ["update step", "iteration"]:
        curves = curves_of(Panel("", labels, x=OVER[over]), records)
        if len(curves) == len(names):
            break
    if over == "hour":
        start = min(record["time"] for record in records if "time" in record)
        curves = [Curve(c.label, tuple(((x - start) / 3600, y) for x, y in c.points)) for c in curves]
    title = ", ".join(names)
    if plot.smoothing:
        curves = [smoothed(curve, plot.smoothing) for curve in curves]
        title += f" (smoothed by {plot.smoothing:g})"
    return chart(title, over, curves, is_log=plot.is_log)


def smoothed(curve: Curve, weight: float) -> Curve:
    """Return the exponential mean of the points so far; the first ones are not drawn towards 0."""
    total = divisor = 0.0
    points = []
    for x, y in curve.points:
        total, divisor = weight * total + y, weight * divisor + 1
        points.append((x, total / divisor))
    return Curve(curve.label, tuple(points))
