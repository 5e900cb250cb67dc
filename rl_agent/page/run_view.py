"""Gathers what the view of a run shows, and the comparison of several: values for the templates."""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_agent.monitor import catalog
from rl_agent.monitor.attempts import Estimate, Outcomes, estimates_of
from rl_agent.monitor.bounds import newest_warnings
from rl_agent.monitor.curves import PANELS, Curve
from rl_agent.monitor.report import (
    COLUMNS,
    Row,
    TimelineSpan,
    by_name,
    failure_lines,
    headings,
    labels_of,
    leading,
)
from rl_agent.page.charts import Chart, chart, duration, gantt, number
from rl_agent.page.plots import Plot, plot_values
from rl_agent.page.run_folder import Numbers, RunFolder, value_at
from rl_agent.page.verdict import Diagnosis
from rl_agent.types import Split

MAX_DIFFERENCES = 200
MAX_FAILURE = 1000
MAX_ROWS = 200
"""Iterations in the table; older ones are in `metrics.jsonl`."""
EXAMPLES = "test/examples"
JUDGE_COSTS = ("train/judge_cost_usd", "test/judge_cost_usd")
OF_A_FOLDER = ("log_path", "run_name")
"""Keys that differ between any two runs."""
FACTS = {
    "phases": ("command", "rl_phase"),
    "iterations": ("command", "max_iterations"),
    "nodes": ("command", "num_nodes"),
    "start": ("attempt",),
}
MAIN_KEYS = (
    "model_config.base_model",
    "data_path",
    "env_config.default_env",
    "env_config.train_tasks_rollout_size",
    "rollout.group_size",
    "policy_config.temperature",
    "policy_config.max_new_tokens",
    "engine.max_model_len",
    "engine.gpu_memory_utilization",
    "engine.tensor_parallel_size",
    "trainer.kind",
    "trainer.placement",
    "trainer.learning_rate",
    "trainer.per_device_train_batch_size",
    "trainer.gradient_accumulation_steps",
    "trainer.num_train_epochs",
    "trainer.positive_samples_to_train",
    "trainer.finetuning_type",
    "trainer.optimizer.learning_rate",
    "trainer.mini_batches",
    "trainer.batch.token_budget",
    "trainer.batch.max_staleness",
    "trainer.loss.advantage",
    "trainer.loss.policy_loss",
    "trainer.lora.rank",
    "trainer.parallel.precision",
    "seed",
)
"""The settings that a researcher asks about first, of either trainer; a run has about 20 of them."""


def run_values(run: RunFolder, diagnosis: Diagnosis, plot: Plot) -> dict[str, Any]:
    """Return everything that the view of a run shows."""
    numbers = run.numbers()
    spans, older_spans = run.spans()
    plan = run.plan()
    settings = flat(plan.get("config"))
    rows = numbers.rows
    return {
        "run": run,
        "found": diagnosis,
        "title": str(value_at(plan, "config", "run_name") or run.name),
        "failures": [line[:MAX_FAILURE] for line in [*failure_lines(rows), *newest_warnings(rows)]],
        "facts": {
            name: str(value) for name, keys in FACTS.items() if (value := value_at(plan, *keys)) is not None
        }
        | {key: settings[key] for key in MAIN_KEYS if key in settings},
        "typed": typed(plan),
        "settings": settings,
        "tiles": tiles(numbers, spans),
        "gantt": gantt(spans),
        "older_spans": older_spans,
        "seconds": seconds_by_name(spans),
        "plot": plot_values(run, numbers, plot),
        "charts": charts(numbers, is_folded=False),
        "folded": charts(numbers, is_folded=True),
        "columns": [heading.replace("\n", " ").strip() for heading in headings(rows)],
        "rows": [
            (iteration, [cell(row.get(key)) for key in COLUMNS.values()])
            for iteration, row in list(rows.items())[-MAX_ROWS:]
        ],
        "rows_left_out": max(0, len(rows) - MAX_ROWS),
        "attempts": attempts(rows),
        "examples": next((row[EXAMPLES] for row in reversed(rows.values()) if EXAMPLES in row), ()),
        "latest": latest(numbers),
    }


def tiles(numbers: Numbers, spans: Sequence[TimelineSpan]) -> list[tuple[str, str, str]]:
    """Return the headline figures: name, value, and a word on it."""
    rows = numbers.rows
    figures: list[tuple[str, str, str]] = []
    splits: tuple[Split, ...] = ("test", "train")
    for split in splits:
        name = leading(rows, split)
        series = [(i, row[name]) for i, row in rows.items() if name in row]
        if series:
            first, begun = series[0][1], series[0][0]
            notes = [f"{series[-1][1] - first:+.3f} since iteration {begun}"] if len(series) > 1 else []
            is_success = name.endswith("success_rate")
            if is_success and (reward := numbers.latest.get(f"{split}/reward_mean")) is not None:
                notes.append(f"reward {number(reward)}")
            if not is_success:
                notes.append("none reaches the success threshold")
            title = f"{split} {'success' if is_success else 'reward'}"
            figures.append((title, number(series[-1][1]), ", ".join(notes)))
    episodes = sum(
        int(row.get(f"{split}/episodes", 0)) for row in rows.values() for split in ("train", "test")
    )
    if rows:
        figures.append(("iterations", number(len(rows)), f"{episodes:,} episodes"))
    if spans:
        figures.append(("time", duration(passed_s(spans)), f"{len(spans):,} phases and steps"))
    machines = numbers.cost("trainer/cost")
    judge = numbers.cost(*JUDGE_COSTS)
    if machines is not None or judge is not None:
        parts = {"machines": machines, "judge": judge}
        words = ", ".join(f"{name} ${value:,.2f}" for name, value in parts.items() if value is not None)
        figures.append(("cost so far", f"${(machines or 0.0) + (judge or 0.0):,.2f}", words))
    else:
        figures.append(("cost so far", "-", "no price is configured"))
    return figures


def passed_s(spans: Sequence[TimelineSpan]) -> float:
    """Return the seconds from the first span's beginning to the last one's end."""
    return max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)


def charts(numbers: Numbers, *, is_folded: bool) -> list[Chart]:
    """Return the diagrams that have a point: those of `reward.png`, or those that it leaves out, all 0."""
    drawn = (
        chart(panel.title, panel.x.replace("_", " "), curves)
        for panel in PANELS
        if panel.is_folded(curves := numbers.curves(panel)) == is_folded
    )
    return [diagram for diagram in drawn if diagram is not None]


def comparison(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the diagrams of several runs, one above the other, and their last figures."""
    numbers = {run.name: run.numbers() for run in runs}
    drawn = []
    recorded = {name for run_numbers in numbers.values() for _, name in run_numbers.points}
    for panel in PANELS:
        labels = panel.labels(recorded)
        for metric, label in labels.items():
            curves = [
                Curve(name, tuple(sorted(points.items())))
                for name, run_numbers in numbers.items()
                if (points := run_numbers.points.get((panel.x, metric)))
            ]
            title = panel.title if len(panel.curves) == 1 else f"{panel.title}: {label}"
            if (diagram := chart(title, panel.x.replace("_", " "), curves)) is not None:
                drawn.append(diagram)
    newest = dict(enumerate(run_numbers.latest for run_numbers in numbers.values()))
    return {
        "differences": differences({run.name: run.plan() for run in runs}),
        "charts": drawn,
        "columns": [heading.replace("\n", " ").strip() for heading in headings(newest)],
        "rows": [
            (
                run,
                len(numbers[run.name].rows),
                [cell(numbers[run.name].latest.get(key)) for key in COLUMNS.values()],
                numbers[run.name].cost("trainer/cost", *JUDGE_COSTS),
            )
            for run in runs
        ],
    }


def seconds_by_name(spans: Sequence[TimelineSpan]) -> list[tuple[str, int, str, str, float]]:
    """Return name, times, seconds in all, mean, and share of the time that passed; some contain others."""
    total = passed_s(spans) or 1.0
    table = []
    named = by_name(spans)
    labels = labels_of(named)
    for name, work_spans in named.items():
        lengths = [span.end - span.start for span in work_spans]
        spent = sum(lengths)
        table.append(
            (
                labels[name],
                len(lengths),
                f"{spent:.1f}",
                f"{spent / len(lengths):.1f}",
                spent / total,
            )
        )
    return table


def attempts(rows: dict[int, Row]) -> list[tuple[str, str, str]]:
    """Return test set, measure, and value with its 95 % interval, of the newest evaluation.

    Empty without several attempts per task or named test sets: then the success rate says the same.
    """
    newest: dict[str, Outcomes] = next(
        (row["test/outcomes"] for row in reversed(rows.values()) if "test/outcomes" in row), {}
    )
    if len(newest) < 2 and not any(map(_is_repeated, newest.values())):
        return []
    return [
        (name or "all tasks", estimate.name, _with_interval(estimate))
        for name, outcomes in newest.items()
        for estimate in estimates_of(outcomes)
    ]


def _is_repeated(outcomes: Outcomes) -> bool:
    return any(not key.startswith("1/") for key in outcomes)


def _with_interval(estimate: Estimate) -> str:
    interval = f" ({estimate.interval[0]:.3f} to {estimate.interval[1]:.3f})" if estimate.interval else ""
    return f"{estimate.value:.3f}{interval}"


def latest(numbers: Numbers) -> list[tuple[str, str, str, str]]:
    """Return name, value, unit and meaning of every number in `metrics.jsonl`, as written last."""
    rows = []
    for name, value in sorted(numbers.latest.items()):
        if isinstance(value, int | float) and not isinstance(value, bool):
            metric = catalog.find(name)
            rows.append((name, cell(value), metric.unit if metric else "", metric.meaning if metric else ""))
    return rows


def cell(value: Any) -> str:
    return number(value) if isinstance(value, int | float) else "-"


# --- settings ---
def typed(plan: Mapping[str, Any]) -> list[str]:
    """Return the overrides as they were typed."""
    words = value_at(plan, "command", "overrides")
    return [str(word) for word in words] if isinstance(words, list) else []


def differences(plans: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return each key in which the configurations differ, with its value in each run; `-`: it has none."""
    of_runs = [flat(plan.get("config")) for plan in plans.values()]
    keys = sorted({key for settings in of_runs for key in settings} - set(OF_A_FOLDER))
    rows = ((key, [settings.get(key, "-") for settings in of_runs]) for key in keys)
    return [(key, values) for key, values in rows if len(set(values)) > 1][:MAX_DIFFERENCES]


def flat(config: Any, prefix: str = "") -> dict[str, str]:
    """Return the values of nested settings by dotted keys; deeper than any configuration, as one text."""
    settings: dict[str, str] = {}
    for name, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict) and value and prefix.count(".") < 8:
            settings |= flat(value, f"{prefix}{name}.")
        else:
            settings[f"{prefix}{name}"] = "null" if value is None else str(value)
    return settings
