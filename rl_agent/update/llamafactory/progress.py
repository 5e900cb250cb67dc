"""How far a training is, read from the log that LLaMA-Factory writes beside its checkpoints."""

import json
from pathlib import Path

from rl_agent.monitor.progress import duration

LOG = "trainer_log.jsonl"
_TAIL_BYTES = 4096


class TrainingProgress:
    """A line for a person whenever the training has got further.

    The log may hold lines of a start before this one, whose seconds do not count: the pace is that between
    two looks, and so is known from the second step that was seen.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        self._log = folder / LOG
        self._iteration = iteration
        self._seen = self._step_and_total()[0]
        self._first: tuple[int, float] | None = None

    def line(self, elapsed_s: float) -> str:
        """Empty where no step was logged since the last call."""
        step, total, loss = self._step_and_total()
        if step == self._seen:
            return ""
        self._seen = step
        first_step, first_s = self._first = self._first or (step, elapsed_s)
        left_s = (total - step) * (elapsed_s - first_s) / (step - first_step) if step > first_step else None
        return (
            f"update iteration {self._iteration}: optimizer step {step} of {total}, loss {loss:.3f},"
            f" {duration(elapsed_s)} gone, {duration(left_s)} left"
        )

    def _step_and_total(self) -> tuple[int, int, float]:
        """Those of the last whole line that has a loss, and the loss; zeros where there is none."""
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
