"""Decides whether an update can continue the optimizer of the update before.

Transformers' Trainer can resume a training. An update is a new training, on new examples, with the old
moments. So it is resumed at step `global_step`, with `max_steps` = `global_step` + the steps of this update,
and skips no examples (`ignore_data_skip`). It then runs exactly the new steps, whatever the size of the new
dataset: it starts in epoch global_step // steps_per_epoch, and the epochs up to max_steps have at least that
many steps.

A schedule that decays needs an end, and a loop of updates has none. Such a schedule restarts in each update,
over that update's own steps, while the optimizer's moments continue; the training is then resumed at step 0.

DeepSpeed keeps the state in shards, one for each process. Those of ZeRO stages 1 and 2 can be converted
(`reshape`) so that fewer or more nodes can continue.
"""

import json
import math
from pathlib import Path

from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.trainer.llamafactory.optimizer.checkpoints import OptimizerState
from rl_agent.trainer.llamafactory.render import TrainingSetup

_ENDLESS = ("constant", "constant_with_warmup")
"""Schedules that do not depend on the number of steps."""
_WITHIN_AN_UPDATE = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"),
)
"""Schedules that depend on the step alone, so that they can be restarted."""


class StateRefused(Exception):
    """The reason why a state of the optimizer is not continued."""


def update_steps(samples: int, world_size: int, config: TrainerConfig) -> int:
    """Count the optimizer steps of one update, as Trainer does."""
    if config.max_steps is not None:
        return config.max_steps
    batches = math.ceil(samples / (config.per_device_train_batch_size * world_size))
    steps_per_epoch = math.ceil(batches / config.gradient_accumulation_steps)
    return math.ceil(steps_per_epoch * config.num_train_epochs)


def restarts_schedule(config: TrainerConfig) -> bool:
    """Return whether the schedule of the learning rate restarts in each update."""
    return config.lr_scheduler_type not in _ENDLESS


def needs_reshape(progress: OptimizerState, setup: TrainingSetup) -> bool:
    """Return whether DeepSpeed's shards were saved by another number of processes than train now."""
    return progress.deepspeed_ranks not in (0, setup.world_size)


def misfit(progress: OptimizerState, config: TrainerConfig, setup: TrainingSetup) -> str:
    """Explain why this training cannot load a state of the optimizer; empty if it can."""
    if config.lr_scheduler_type not in (*_ENDLESS, *_WITHIN_AN_UPDATE):
        return f"the schedule of trainer.lr_scheduler_type={config.lr_scheduler_type} cannot be set back"
    if progress.is_lora != (config.finetuning_type == "lora"):
        return f"trainer.finetuning_type={config.finetuning_type} differs from the last update's"
    if bool(progress.deepspeed_ranks) != (setup.deepspeed is not None):
        return "trainer.deepspeed was switched on or off"
    if needs_reshape(progress, setup) and (progress.is_lora or _zero_stage(setup.deepspeed) > 2):
        return f"the number of processes changed from {progress.deepspeed_ranks} to {setup.world_size}"
    if setup.uses_cpu and setup.world_size > 1 and not progress.deepspeed_ranks:
        # Trainer asks torch to restore to "cpu:0", which torch does not know (transformers 5.6, torch 2.13).
        return "several processes on a CPU cannot restore it"
    return ""


def _zero_stage(deepspeed: Path | None) -> int:
    settings = json.loads(deepspeed.read_bytes()) if deepspeed is not None else {}
    return int(settings.get("zero_optimization", {}).get("stage", 0))
