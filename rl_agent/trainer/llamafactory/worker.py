"""Runs one process of a training: LLaMA-Factory, and its metrics of every step in `metrics.jsonl`.

    python -m rl_agent.trainer.llamafactory.worker TRAIN_YAML METRICS ITERATION

torchrun starts it once for each device. The process of rank 0 appends a line for every entry of Trainer's
log while the training runs, which has one every `trainer.logging_steps` steps and one of the last steps:

    {"time", "iteration", "phase": "update", "update_step", "update_step/loss", "update_step/grad_norm", …}

`update_step` counts the optimizer steps of all iterations, also if an update started its optimizer afresh. A
repeated update writes the same numbers again.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from rl_agent.monitor import metrics
from rl_agent.system.owned import end_with_parent
from rl_agent.trainer.llamafactory.inputs import read_summary

STEP = "update_step"
LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Set by torchrun for the processes it starts."""

_RECORDED = ("loss", "learning_rate", "grad_norm", "eval_loss")


class StepRecorder:
    """Writes the entries of Trainer's log to the metrics file."""

    def __init__(self, path: Path, iteration: int, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._iteration = iteration
        self._clock = clock
        self._offset = 0

    def begin(self, first_step: int) -> None:
        """Set where the count continues; Trainer's counter was `first_step` when the update began."""
        self._offset = last_step(self._path, before=self._iteration) - first_step

    def record(self, global_step: int, entry: Mapping[str, Any]) -> None:
        numbers = {f"{STEP}/{name}": float(entry[name]) for name in _RECORDED if name in entry}
        if numbers:
            head = {"time": self._clock(), "iteration": self._iteration, "phase": "update"}
            metrics.append(self._path, head | {STEP: global_step + self._offset} | numbers)


def last_step(path: Path, *, before: int) -> int:
    """Return the last step that was recorded in an iteration before `before`."""
    lines = (record for record in metrics.read(path) if STEP in record)
    return max((record[STEP] for record in lines if record["iteration"] < before), default=0)


def callback(recorder: StepRecorder, first_step: int) -> Any:
    """Wrap the recorder as a callback of transformers' Trainer."""
    from transformers import TrainerCallback

    class RecordSteps(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                recorder.begin(first_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step >= state.max_steps:  # the steps since the last multiple of logging_steps
                control.should_log = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if state.is_world_process_zero:
                recorder.record(state.global_step, logs or {})

    return RecordSteps()


def die_with_launcher(environ: Mapping[str, str]) -> None:
    """Let the kernel end this process when torchrun dies.

    torchrun starts it in another session, so it would continue to train, and with it all other nodes.
    """
    if LAUNCHED not in environ:
        return
    launcher = os.getppid()
    end_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


def join_peers(settings: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Set the deadline of a CPU training between its processes; Trainer does so only on GPUs."""
    if not settings.get("use_cpu") or int(environ.get("WORLD_SIZE", "1")) < 2:
        return
    import torch

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=settings["ddp_timeout"]))
    if settings.get("deepspeed"):
        # ZeRO-3 splits the model while it is loaded, before Trainer would tell DeepSpeed of the others.
        import deepspeed

        deepspeed.init_distributed("gloo", verbose=False)


def main(argv: list[str]) -> None:
    train_file, metrics_file, iteration = argv
    die_with_launcher(os.environ)
    join_peers(yaml.safe_load(Path(train_file).read_bytes()), os.environ)
    from llamafactory.train.tuner import run_exp

    sys.argv = [sys.argv[0], train_file]  # where LLaMA-Factory looks
    recorder = StepRecorder(Path(metrics_file), int(iteration))
    run_exp(callbacks=[callback(recorder, read_summary(Path(train_file).parent).first_step)])


if __name__ == "__main__":
    main(sys.argv[1:])
