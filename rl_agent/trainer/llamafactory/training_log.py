"""Reads the log that LLaMA-Factory writes beside its checkpoints: progress, and metrics at the end."""

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from rl_agent.monitor.progress import duration, progress_line
from rl_agent.trainer.llamafactory.inputs import UpdateSummary

LOG = "trainer_log.jsonl"
RESULTS = "train_results.json"
_TAIL_BYTES = 4096


class TrainingProgress:
    """Describes the progress of a training in a line, once there is any.

    The log may hold lines of an earlier start, whose seconds do not count: the pace is that between two calls
    of `line`, and so is known from the second step that was seen.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        self._log = folder / LOG
        self._iteration = iteration
        self._earlier = self._last_step()[0]
        self._first: tuple[int, float] | None = None

    def line(self, elapsed_s: float, *, has_bar: bool = False) -> str:
        """Describe the newest optimizer step; empty before this start's first one."""
        step, total, loss = self._last_step()
        if step == self._earlier:
            return ""
        first_step, first_s = self._first = self._first or (step, elapsed_s)
        facts = [f"loss {loss:.3f}"]
        if step > first_step:
            facts.append(f"{duration((total - step) * (elapsed_s - first_s) / (step - first_step))} left")
        return progress_line(f"update {self._iteration}", step, total, facts, has_bar)

    def _last_step(self) -> tuple[int, int, float]:
        """Return step, total steps and loss of the last whole line that has a loss, or zeros."""
        try:
            with self._log.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return 0, 0, 0.0
        for text in reversed(lines):
            if text.endswith(b"\n"):
                try:
                    entry = json.loads(text)
                except ValueError:  # where the tail begins, within a line
                    break
                if "loss" in entry:  # the others are about evaluations, or the end
                    return entry["current_steps"], entry["total_steps"], entry["loss"]
        return 0, 0, 0.0


def metrics_of(training: Path, summary: UpdateSummary) -> dict[str, float]:
    """Return the `update/…` metrics of a finished training, without those that it did not log."""
    lines = _entries(_read(training / LOG))
    results: dict[str, Any] = json.loads(_read(training / RESULTS) or "{}")
    # An update that was interrupted logs some steps again: the later line counts.
    logged = {
        line["current_steps"]: line
        for line in lines
        if "loss" in line and line["current_steps"] > summary.first_step
    }
    steps = [logged[step] for step in sorted(logged)]
    eval_losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    numbers: dict[str, float | None] = {
        "update/samples": summary.samples,
        "update/validation_samples": summary.validation_samples,
        "update/candidates": summary.candidates,
        "update/tasks": summary.tasks,
        "update/left_out": sum(summary.left_out.values()),
        "update/steps": summary.new_steps,
        "update/total_steps": summary.steps_before + summary.new_steps,
        "update/loss": _mean_loss(logged, summary.first_step),
        "update/loss_first": steps[0]["loss"] if steps else None,
        "update/loss_last": steps[-1]["loss"] if steps else None,
        "update/learning_rate": steps[-1].get("lr") if steps else None,
        "update/eval_loss": eval_losses[-1] if eval_losses else None,
        "update/train_s": results.get("train_runtime"),
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _mean_loss(logged: Mapping[int, Mapping[str, Any]], first_step: int) -> float | None:
    """Return the mean over all steps; a line is the mean of the steps since the line before it."""
    ends = [first_step, *sorted(logged)]
    widths = {end: end - begin for begin, end in pairwise(ends)}
    total = sum(widths.values())
    return sum(logged[end]["loss"] * width for end, width in widths.items()) / total if total else None


def _entries(text: str) -> list[dict[str, Any]]:
    """Return the entries of a log; a kill may have cut a line, behind which the next start went on."""
    entries = []
    for line in text.splitlines():
        with suppress(ValueError):
            entries.append(json.loads(line))
    return entries


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
