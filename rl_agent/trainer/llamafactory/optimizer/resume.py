"""Makes the folder that Trainer resumes from: an old state of the optimizer, adapted to this training.

Its files are hard links into the old checkpoint, except for those that this training changes: the intervals
that Trainer would take from its old state, the learning rate, the position in its schedule, and DeepSpeed's
shards. A changed file is written anew, never through a link.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.errors import ConfigError
from rl_agent.system.files import link_tree, remove, sync, write_whole
from rl_agent.trainer.llamafactory.optimizer.checkpoints import STATE, OptimizerState


def resume_folder(
    progress: OptimizerState,
    target: Path,
    config: TrainerConfig,
    *,
    at: int,
    new_steps: int,
    old_learning_rate: float,
) -> Path:
    """Make `target` from `progress`, which may be in `target` itself; the old state is unchanged.

    Trainer will count from `at`; 0 also restarts the schedule of the learning rate. A changed learning rate
    applies from the first step; with DeepSpeed, whose shards are not changed, from the second.
    """
    growing = target.with_name(target.name + ".tmp")
    remove(growing)
    link_tree(progress.folder, growing)
    _replace_json(growing / STATE, lambda state: state | _intervals(config, new_steps) | {"global_step": at})
    factor = config.learning_rate / old_learning_rate
    share = None if at else 0.0 if _warms_up(config) else 1.0
    if at != progress.global_step or factor != 1.0:
        place = None if at == progress.global_step else at
        change = partial(_change_schedule, factor=factor, place=place, share=share)
        _replace_pickle(growing / "scheduler.pt", change)
    if (share is not None or factor != 1.0) and not progress.deepspeed_ranks:
        _replace_pickle(growing / "optimizer.pt", partial(_change_groups, factor=factor, share=share))
    remove(target)
    growing.rename(target)
    sync(target.parent)
    return target


def _warms_up(config: TrainerConfig) -> bool:
    return bool(config.warmup_ratio if config.warmup_steps is None else config.warmup_steps)


def _intervals(config: TrainerConfig, new_steps: int) -> dict[str, Any]:
    def absolute(steps: float) -> int:
        return math.ceil(new_steps * steps) if steps < 1 else int(steps)

    return {
        "logging_steps": config.logging_steps,
        "save_steps": absolute(config.save_steps),
        "eval_steps": absolute(config.extra_args.get("eval_steps") or config.logging_steps),
        "log_history": [],
        "best_metric": None,
        "best_global_step": None,
        "best_model_checkpoint": None,
    }


def _change_schedule(
    state: dict[str, Any], *, factor: float, place: int | None, share: float | None
) -> dict[str, Any]:
    """Scale the learning rates by `factor`; move the schedule to step `place`, at `share` of the rates."""
    bases = [rate * factor for rate in state["base_lrs"]]
    last = [rate * factor for rate in state["_last_lr"]] if share is None else [b * share for b in bases]
    step = {} if place is None else {"last_epoch": place, "_step_count": place + 1}
    return state | {"base_lrs": bases, "_last_lr": last} | step


def _change_groups(state: dict[str, Any], *, factor: float, share: float | None) -> dict[str, Any]:
    """Do the same as `_change_schedule` for the rates in the optimizer's own state."""
    for group in state["param_groups"]:
        group |= {name: group[name] * factor for name in ("lr", "initial_lr") if name in group}
        if share is not None:
            group["lr"] = group["initial_lr"] * share
    return state


def _replace_json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    write_whole(path, json.dumps(change(json.loads(path.read_bytes())), indent=2) + "\n")


def _replace_pickle(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite one of torch's state files; only tensors and plain values are read, never code."""
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
