"""Writes LLaMA-Factory's YAML from the configuration group `trainer`.

A key whose value is null is left out, so that LLaMA-Factory's own default holds. `trainer.extra_args` comes
last and may replace or (with null) remove any key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl_agent.config.plan import Plan
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.engine.sharing import training_gpu_count, trains_on_cpu
from rl_agent.errors import ConfigError
from rl_agent.monitor.flops import ModelShape
from rl_agent.paths import CONFIG_DIR
from rl_agent.trainer.gpu_memory import recomputes
from rl_agent.trainer.llamafactory.inputs import DATASET_FOLDER
from rl_agent.trainer.llamafactory.template import choose_template

_DATASET = "rl_agent_train"
_VALIDATION = "rl_agent_validation"
"""Names that LLaMA-Factory requires; the files are those of `DATASET_FOLDER`."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The values that depend on the machine: devices and number of processes."""

    uses_cpu: bool
    bf16: bool
    processes: int
    """The number of processes on each node."""
    nodes: int
    deepspeed: Path | None

    @property
    def world_size(self) -> int:
        return self.processes * self.nodes

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1 or self.deepspeed is not None


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """The model and the state from which a training starts."""

    model: str
    config: Mapping[str, Any]
    """The content of the model's config.json; empty where it is not known."""
    adapter: Path | None = None
    """LoRA adapter to continue with, if the optimizer starts afresh."""
    resume_from: Path | None = None
    deepspeed: Path | None = None
    """DeepSpeed settings that can read `resume_from`, if those of the configuration cannot."""
    steps_before: int = 0
    """Optimizer steps of the earlier updates that this one continues."""
    first_step: int = 0
    """Trainer's step counter at the beginning of the update."""
    max_steps: int | None = None


def setup_of(plan: Plan, nodes: int = 1) -> TrainingSetup:
    """Resolve what the configuration leaves to the machine, for a training on `nodes` nodes like this one.

    Raises ConfigError for an unknown `deepspeed`.
    """
    trainer = plan.config.llamafactory
    gpus = training_gpu_count(plan.config, plan.hardware.num_gpus)
    uses_cpu = trains_on_cpu(plan.config, plan.hardware.num_gpus)
    return TrainingSetup(
        uses_cpu=uses_cpu,
        bf16=not uses_cpu if trainer.bf16 is None else trainer.bf16,
        processes=trainer.nproc_per_node or (1 if uses_cpu else max(gpus, 1)),
        nodes=nodes,
        deepspeed=deepspeed_file(trainer.deepspeed),
    )


def deepspeed_file(name: str | None) -> Path | None:
    """Find the DeepSpeed settings: `zero2` names a file of configs/deepspeed, other values are paths."""
    if name is None:
        return None
    own = CONFIG_DIR / "deepspeed" / f"{name}.json"
    path = own if own.is_file() else Path(name).resolve()
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in own.parent.glob("*.json")))
        raise ConfigError(f"trainer.deepspeed={name}: is neither one of {names} nor a file")
    return path


_OF_TEXTS = (
    *("dataset", "dataset_dir", "eval_dataset", "tokenized_path", "streaming", "max_samples", "val_size"),
    *("cutoff_len", "packing", "neat_packing", "mask_history", "train_on_prompt", "preserve_thinking"),
    *("enable_thinking", "default_system", "tool_format", "mix_strategy", "interleave_probs"),
    *("overwrite_cache", "preprocessing_batch_size", "preprocessing_num_workers", "image_min_pixels"),
)
"""Keys about making samples: LLaMA-Factory is given finished samples and would silently ignore them."""


def check_extra_args(trainer: TrainerConfig) -> None:
    """Raises ConfigError for a key of `trainer.extra_args` that would have no effect."""
    for key in _OF_TEXTS:
        if trainer.extra_args.get(key) is not None:
            raise ConfigError(
                f"trainer.extra_args.{key}: LLaMA-Factory does not read it here, for it is given the recorded"
                " token ids of each step and creates no samples itself; leave it out"
            )


def training_arguments(
    plan: Plan, iteration: int, start: TrainingStart, setup: TrainingSetup, *, has_validation: bool
) -> dict[str, Any]:
    """Return the keys of the YAML in a readable order, without those that are null."""
    config, trainer = plan.config, plan.config.llamafactory
    sections = (
        {
            "stage": "sft",
            "do_train": True,
            "model_name_or_path": start.model,
            "adapter_name_or_path": _text(start.adapter),
            "trust_remote_code": config.model.trust_remote_code,
            "template": choose_template(config.model, start.config),
        },
        {"finetuning_type": trainer.finetuning_type},
        _same(trainer, _LORA) if trainer.finetuning_type == "lora" else {},
        {
            "dataset": _DATASET,  # a name that has to be there; it loads what lies at tokenized_path
            "tokenized_path": str(plan.paths.update_dir(iteration) / DATASET_FOLDER),
            "cutoff_len": trainer.cutoff_len,
            "image_max_pixels": trainer.image_max_pixels,
        },
        {
            "output_dir": str(plan.paths.training_dir(iteration)),
            "overwrite_output_dir": True,
            "resume_from_checkpoint": _text(start.resume_from),
            "ignore_data_skip": True if start.resume_from else None,
            "max_steps": start.max_steps if start.max_steps is not None else trainer.max_steps,
            "num_train_epochs": trainer.num_train_epochs,
        },
        _same(trainer, _OPTIMIZATION),
        {
            "do_eval": True,
            "eval_dataset": _VALIDATION,
            "eval_strategy": "epoch",
            "per_device_eval_batch_size": trainer.per_device_train_batch_size,
        }
        if has_validation
        else {},
        # An interrupted training goes on from the newest checkpoint; the older ones would fill the disk.
        {"save_strategy": "steps", "save_total_limit": 1},
        _same(trainer, _SAVING),
        {"report_to": "none"},  # the run itself records what wandb shows
        {
            "run_name": f"{config.run_name}-iteration{iteration}",
            "seed": config.seed + iteration,
            "gradient_checkpointing": recomputes(
                ModelShape.of(start.config),
                trainer,
                setup.world_size,
                device_gib=0.0 if setup.uses_cpu else plan.hardware.gpu_memory_gib,
            ),
            "dataloader_num_workers": 0 if setup.uses_cpu else 2,  # on a CPU they would take its cores away
            "dataloader_pin_memory": not setup.uses_cpu,  # it makes copies to a GPU faster
            "remove_unused_columns": False,  # or images would be lost
            "bf16": setup.bf16,
            "use_cpu": setup.uses_cpu,
            "deepspeed": _text(start.deepspeed or setup.deepspeed),
            "ddp_timeout": int(trainer.peer_timeout_s),
        },
        trainer.extra_args,
    )
    merged: dict[str, Any] = {}
    for section in sections:
        merged |= section
    return {key: value for key, value in merged.items() if value is not None}


_LORA = ("lora_rank", "lora_alpha", "lora_target")
_OPTIMIZATION = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "max_grad_norm"),
    *("weight_decay", "lr_scheduler_type", "warmup_steps", "warmup_ratio"),
)
_SAVING = ("save_steps", "save_only_model", "logging_steps")
"""Keys that have the same name and meaning in the group `trainer` and in LLaMA-Factory."""


def _same(trainer: TrainerConfig, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(trainer, name) for name in names}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def to_yaml(arguments: dict[str, Any]) -> str:
    """Return the YAML text, keys in their order."""
    return yaml.safe_dump(arguments, sort_keys=False, allow_unicode=True)
