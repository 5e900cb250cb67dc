"""The numbers of one update, from the logs that LLaMA-Factory leaves."""

import json
from pathlib import Path
from typing import Any

from rl_agent.update.inputs import Prepared

LOG = "trainer_log.jsonl"
RESULTS = "train_results.json"


def metrics_of(training: Path, summary: Prepared) -> dict[str, float]:
    """`update/…` numbers of a training; those it did not log are left out."""
    steps = [line for line in _log_lines(training / LOG) if "loss" in line]
    results = _results(training / RESULTS)
    numbers: dict[str, float | None] = {
        "update/samples": summary.samples,
        "update/validation_samples": summary.validation_samples,
        "update/candidates": summary.candidates,
        "update/tasks": summary.tasks,
        "update/left_out": sum(summary.left_out.values()),
        "update/steps": summary.new_steps,
        "update/total_steps": summary.steps_before + summary.new_steps,
        "update/loss": sum(line["loss"] for line in steps) / len(steps) if steps else None,
        "update/loss_first": steps[0]["loss"] if steps else None,
        "update/loss_last": steps[-1]["loss"] if steps else None,
        "update/learning_rate": steps[-1].get("lr") if steps else None,
        "update/eval_loss": _last(training / LOG, "eval_loss"),
        "update/train_s": results.get("train_runtime"),
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _log_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes()) if path.is_file() else {}


def _last(path: Path, key: str) -> float | None:
    values = [line[key] for line in _log_lines(path) if key in line]
    return values[-1] if values else None
