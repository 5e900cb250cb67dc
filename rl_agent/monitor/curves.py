"""Draws the curves of a run as one PNG, from `metrics.jsonl`."""

import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent.monitor import metrics
from rl_agent.system.files import write_whole
from rl_agent.system.terminal import one_line

COLUMNS = 3
PANEL_INCHES = (4.6, 3.2)


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve of a diagram."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """A diagram of some metrics over the metric `x`."""

    title: str
    curves: Mapping[str, str]
    """Labels, by the name of the metric."""
    x: str = "iteration"
    prefix: str = ""
    """Metrics whose names begin with it are curves, too, labelled by the rest of their names."""
    is_outcome: bool = False
    """A zero is news: the diagram is shown even if it has no other number."""

    def is_folded(self, curves: Iterable[Curve]) -> bool:
        """Return whether the curves are 0 from end to end and say nothing."""
        return not self.is_outcome and not any(y for curve in curves for _, y in curve.points)

    def labels(self, recorded: Collection[str]) -> dict[str, str]:
        """Return the label of each metric of this panel that was recorded."""
        labels = {name: label for name, label in self.curves.items() if name in recorded}
        more = sorted(name for name in recorded if self.prefix and name.startswith(self.prefix))
        return labels | {name: name.removeprefix(self.prefix) for name in more}


def _of_splits(name: str) -> dict[str, str]:
    return {f"test/{name}": "evaluation", f"train/{name}": "rollout"}


PANELS = (
    Panel("success rate", _of_splits("success_rate"), is_outcome=True),
    Panel("mean reward", _of_splits("reward_mean"), is_outcome=True),
    Panel("named rewards (rollout)", {}, prefix="train/reward/"),
    Panel("loss of each optimizer step", {"update_step/loss": "training"}, x="update_step"),
    Panel("entropy (nats)", {"trainer/entropy": "policy"}, x="update_step"),
    Panel(
        "KL divergence (nats)",
        {"trainer/kl": "from the reference model", "trainer/behaviour_kl": "from the engine's policy"},
        x="update_step",
    ),
    Panel(
        "share of tokens",
        {"trainer/clip_fraction": "clipped", "trainer/masked_share": "masked"},
        x="update_step",
    ),
    Panel("gradient norm before clipping", {"update_step/grad_norm": "training"}, x="update_step"),
    Panel("share of groups with equal rewards", {"train/zero_std_groups_share": "rollout"}),
    Panel(
        "engine against trainer (nats per token)",
        {"trainer/logprob_difference": "absolute difference of logprobs"},
        x="update_step",
    ),
    Panel("tokens per response", _of_splits("response_tokens_mean")),
    Panel("response tokens per second", _of_splits("engine_tokens_per_s")),
    Panel(
        "share of episodes (rollout)",
        {
            "train/truncated_share": "truncated",
            "train/timed_out_share": "timed out",
            "train/failed_share": "failed",
            "train/abandoned_share": "abandoned",
        },
    ),
    Panel(
        "share of a step (streaming)",
        {
            "trainer/waiting_share": "trainer waits",
            "trainer/engines_idle_share": "engines idle",
            "trainer/mfu": "MFU",
        },
        x="update_step",
    ),
)


def curves_of(panel: Panel, records: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """Return the curves that have a point; of two records with the same x the later one counts."""
    points: dict[str, dict[float, float]] = {}
    for record in records:
        for name in panel.labels(record) if panel.x in record else ():
            points.setdefault(name, {})[record[panel.x]] = record[name]
    return [Curve(label, tuple(sorted(points[name].items()))) for name, label in panel.labels(points).items()]


def draw(metrics_file: Path, out: Path, title: str) -> bool:
    """Write the PNG, whole, without panels that are empty or 0; return False if none is left.

    It takes a second. Raises OSError that names `out`.
    """
    records = list(metrics.read(metrics_file))
    drawn = [
        (panel, curves)
        for panel in PANELS
        if (curves := curves_of(panel, records)) and not panel.is_folded(curves)
    ]
    if not drawn:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    columns = min(COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, dpi=110, squeeze=False)
    for axes in grid.flat[len(drawn) :]:
        axes.set_axis_off()
    for axes, (panel, curves) in zip(grid.flat, drawn, strict=False):
        for curve in curves:
            marker = "o" if len(curve.points) <= 50 else None
            axes.plot(*zip(*curve.points, strict=True), marker=marker, markersize=4, label=curve.label)
        axes.set(xlabel=panel.x.replace("_", " "), title=panel.title)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(one_line(title), parse_math=False)
    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, format="png")
    pyplot.close(figure)
    try:
        write_whole(out, content.getvalue(), is_durable=False)
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(out)) from error
    return True
