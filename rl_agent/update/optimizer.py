"""Continuing the optimizer of the last update.

Transformers' Trainer resumes a training; an update is a new one, on new examples, with the old moments. So
the resumed training is told that it is `global_step` steps in and has `max_steps` = `global_step` + the steps
of this update, and not to skip examples (`ignore_data_skip`). It then runs exactly the new steps, whatever
the size of the new dataset: it starts in epoch global_step // steps_per_epoch, whose examples it has not
seen, and the epochs left to max_steps hold at least that many steps.

A schedule that decays has to know its end, and a loop of updates has none: such a schedule starts anew in
each update, over that update's own steps, while the optimizer's moments go on. The resumed training is then
told that it is 0 steps in.

`resume_folder` makes the folder it resumes from: hard links into the published version, except for what this
update changes (never written through a link): the intervals that Trainer would take from its old state, the
learning rate, and where its schedule stands.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rl_agent.config import TrainerConfig
from rl_agent.errors import ConfigError
from rl_agent.update.files import link_tree, remove, write_whole
from rl_agent.update.render import Setup

STATE = "trainer_state.json"

_ENDLESS = ("constant", "constant_with_warmup")
"""Schedules that do not depend on the number of steps."""
_WITHIN_AN_UPDATE = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"),
)
"""Schedules that are functions of the step alone, so that they can be set back to their start."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The optimizer's state that a version carries."""

    folder: Path
    global_step: int
    is_lora: bool
    deepspeed_ranks: int
    """Number of processes whose shards it holds; 0 where DeepSpeed was not used."""


def update_steps(samples: int, world_size: int, config: TrainerConfig) -> int:
    """Optimizer steps of one update, by Trainer's own arithmetic."""
    if config.max_steps is not None:
        return config.max_steps
    batches = math.ceil(samples / (config.per_device_train_batch_size * world_size))
    steps_per_epoch = math.ceil(batches / config.gradient_accumulation_steps)
    return math.ceil(steps_per_epoch * config.num_train_epochs)


def restarts_schedule(config: TrainerConfig) -> bool:
    """Whether the learning rate runs through its schedule anew in each update."""
    return config.lr_scheduler_type not in _ENDLESS


def find_progress(folder: Path) -> Progress | None:
    """The optimizer's state in a checkpoint folder; None where it is incomplete or was not saved."""
    if not (folder / STATE).is_file() or not (folder / "scheduler.pt").is_file():
        return None
    shards = sum(1 for _ in folder.glob("global_step*/*_optim_states.pt"))
    if not shards and not (folder / "optimizer.pt").is_file():
        return None
    step = json.loads((folder / STATE).read_bytes())["global_step"]
    return Progress(folder, step, (folder / "adapter_config.json").is_file(), shards)


def obstacle(progress: Progress | None, config: TrainerConfig, setup: Setup) -> str:
    """Why the optimizer starts afresh; empty where it is continued."""
    if not config.continue_optimizer:
        return "trainer.continue_optimizer is false"
    if config.lr_scheduler_type not in (*_ENDLESS, *_WITHIN_AN_UPDATE):
        return f"the schedule of trainer.lr_scheduler_type={config.lr_scheduler_type} cannot be set back"
    if progress is None:
        return "the served model came without an optimizer's state"
    if progress.is_lora != (config.finetuning_type == "lora"):
        return f"trainer.finetuning_type={config.finetuning_type} differs from the last update's"
    if bool(progress.deepspeed_ranks) != (setup.deepspeed is not None):
        return "trainer.deepspeed was switched on or off"
    if progress.deepspeed_ranks and progress.deepspeed_ranks != setup.world_size:
        return f"the number of processes changed from {progress.deepspeed_ranks} to {setup.world_size}"
    if setup.uses_cpu and setup.world_size > 1 and not progress.deepspeed_ranks:
        # Trainer asks torch to restore to "cpu:0", which torch does not know (transformers 5.6, torch 2.13).
        return "several processes on a CPU cannot restore it"
    return ""


def resume_folder(
    progress: Progress, target: Path, config: TrainerConfig, *, new_steps: int, old_learning_rate: float
) -> Path:
    """A folder for `resume_from_checkpoint`; the old state behind it stays as it was.

    A changed learning rate, or one whose schedule starts anew, counts from the first step; with DeepSpeed,
    whose shards are left alone, from the second.
    """
    remove(target)
    link_tree(progress.folder, target)
    restarts = restarts_schedule(config)
    place = {"global_step": 0, "epoch": 0} if restarts else {}
    _replace_json(target / STATE, lambda state: state | _intervals(config, new_steps) | place)
    factor = config.learning_rate / old_learning_rate
    share = (0.0 if _warms_up(config) else 1.0) if restarts else None
    if share is None and factor == 1.0:
        return target
    _replace_pickle(target / "scheduler.pt", partial(_change_schedule, factor=factor, share=share))
    if not progress.deepspeed_ranks:
        _replace_pickle(target / "optimizer.pt", partial(_change_groups, factor=factor, share=share))
    return target


def _warms_up(config: TrainerConfig) -> bool:
    return bool(config.warmup_ratio if config.warmup_steps is None else config.warmup_steps)


def _intervals(config: TrainerConfig, new_steps: int) -> dict[str, Any]:
    def absolute(steps: float) -> int:
        return math.ceil(new_steps * steps) if steps < 1 else int(steps)

    return {
        "logging_steps": config.logging_steps,
        "save_steps": absolute(config.save_steps),
        "eval_steps": absolute(config.eval_steps or config.logging_steps),
        "log_history": [],
        "best_metric": None,
        "best_global_step": None,
        "best_model_checkpoint": None,
    }


def _change_schedule(state: dict[str, Any], *, factor: float, share: float | None) -> dict[str, Any]:
    """Scale the learning rates by `factor`; with `share` go back to the start, at that share of them."""
    bases = [rate * factor for rate in state["base_lrs"]]
    if share is None:
        return state | {"base_lrs": bases, "_last_lr": [rate * factor for rate in state["_last_lr"]]}
    rates = {"base_lrs": bases, "_last_lr": [rate * share for rate in bases]}
    return state | rates | {"last_epoch": 0, "_step_count": 1}


def _change_groups(state: dict[str, Any], *, factor: float, share: float | None) -> dict[str, Any]:
    """What `_change_schedule` does, for the rates that the optimizer itself holds."""
    for group in state["param_groups"]:
        group |= {name: group[name] * factor for name in ("lr", "initial_lr") if name in group}
        if share is not None:
            group["lr"] = group["initial_lr"] * share
    return state


def _replace_json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    write_whole(path, json.dumps(change(json.loads(path.read_bytes())), indent=2) + "\n")


def _replace_pickle(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite one of torch's state files; reads tensors and plain values only, never code."""
    import torch

    try:
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # torch passes on whatever its reader raises
        raise ConfigError(
            f"{path}: is no readable state of an optimizer; trainer.continue_optimizer=false starts a new one"
        ) from error
    temporary = path.with_name(path.name + ".tmp")
    torch.save(change(state), temporary)
    temporary.replace(path)
