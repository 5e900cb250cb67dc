"""LLaMA-Factory's YAML from the `trainer` group.

A key whose value is null is left out, so that LLaMA-Factory's own default holds; `trainer.extra_args` comes
last and may replace or (with null) remove any key.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl_agent.config import Plan, TrainerConfig
from rl_agent.engine.sharing import training_gpu_count, trains_on_cpu
from rl_agent.errors import ConfigError
from rl_agent.paths import CONFIG_DIR
from rl_agent.update.dataset.export import DATASET, DATASET_FOLDER, VALIDATION


@dataclass(frozen=True, slots=True)
class Setup:
    """How many processes train on what; the values that depend on this machine."""

    uses_cpu: bool
    bf16: bool
    processes: int
    """On each node."""
    nodes: int
    deepspeed: Path | None

    @property
    def world_size(self) -> int:
        return self.processes * self.nodes

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1 or self.deepspeed is not None


@dataclass(frozen=True, slots=True)
class Start:
    """What the training starts from."""

    model: str
    adapter: Path | None = None
    """LoRA's adapter to go on with, where the optimizer starts afresh."""
    resume_from: Path | None = None
    deepspeed: Path | None = None
    """Settings that read what `resume_from` holds, where those of the configuration do not."""
    steps_before: int = 0
    """Optimizer steps of earlier updates that this one continues."""
    first_step: int = 0
    """What Trainer counted when the update began."""
    max_steps: int | None = None


def setup_of(plan: Plan, nodes: int = 1) -> Setup:
    """Fill in what the configuration leaves to the machine, for a training on `nodes` nodes like this one.

    Raises ConfigError for an unknown `deepspeed`.
    """
    trainer = plan.config.llamafactory
    gpus = training_gpu_count(plan.config, plan.hardware.num_gpus)
    uses_cpu = trains_on_cpu(plan.config, plan.hardware.num_gpus)
    return Setup(
        uses_cpu=uses_cpu,
        bf16=not uses_cpu if trainer.bf16 is None else trainer.bf16,
        processes=trainer.nproc_per_node or (1 if uses_cpu else max(gpus, 1)),
        nodes=nodes,
        deepspeed=deepspeed_file(trainer.deepspeed),
    )


def deepspeed_file(name: str | None) -> Path | None:
    """`zero2` is a file of configs/deepspeed, anything else is a path."""
    if name is None:
        return None
    own = CONFIG_DIR / "deepspeed" / f"{name}.json"
    path = own if own.is_file() else Path(name).resolve()
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in own.parent.glob("*.json")))
        raise ConfigError(f"trainer.deepspeed={name}: is neither one of {known} nor a file")
    return path


_OF_TEXTS = (
    *("dataset", "dataset_dir", "eval_dataset", "tokenized_path", "streaming", "max_samples", "val_size"),
    *("cutoff_len", "packing", "neat_packing", "mask_history", "train_on_prompt", "preserve_thinking"),
    *("enable_thinking", "default_system", "tool_format", "mix_strategy", "interleave_probs"),
    *("overwrite_cache", "preprocessing_batch_size", "preprocessing_num_workers", "image_min_pixels"),
)
"""What LLaMA-Factory makes samples by; it is given samples, and would not say that it passes these over."""


def check_extra_args(trainer: TrainerConfig) -> None:
    """Raises ConfigError for a key that would change nothing, or not what it says."""
    for key in _OF_TEXTS:
        if trainer.extra_args.get(key) is not None:
            raise ConfigError(
                f"trainer.extra_args.{key}: LLaMA-Factory does not read it here, for it is given the recorded"
                " token ids of each step and makes no samples itself; leave it out"
            )


def training_arguments(
    plan: Plan, iteration: int, start: Start, setup: Setup, *, has_validation: bool
) -> dict[str, Any]:
    """Every key of the YAML, in a readable order, without those that are null."""
    config, trainer = plan.config, plan.config.llamafactory
    sections = (
        {
            "stage": "sft",
            "do_train": True,
            "model_name_or_path": start.model,
            "adapter_name_or_path": _text(start.adapter),
            "trust_remote_code": config.model.trust_remote_code,
            "template": config.model.template,
        },
        _finetuning(trainer),
        {
            "dataset": DATASET,  # a name that has to be there; it loads what lies at tokenized_path
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
        _optimization(trainer),
        _evaluation(trainer) if has_validation else {},
        {
            "save_strategy": trainer.save_strategy,
            "save_steps": trainer.save_steps,
            "save_total_limit": trainer.save_total_limit,
            "save_only_model": trainer.save_only_model,
            "logging_steps": trainer.logging_steps,
            "plot_loss": trainer.plot_loss,
            "report_to": trainer.report_to,
            "run_name": f"{config.run_name}-iteration{iteration}",
            "seed": config.seed + iteration,
            "dataloader_num_workers": trainer.dataloader_num_workers,
            "dataloader_pin_memory": trainer.dataloader_pin_memory,
            "remove_unused_columns": trainer.remove_unused_columns,
            "gradient_checkpointing": trainer.gradient_checkpointing,
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


def _finetuning(trainer: TrainerConfig) -> dict[str, Any]:
    if trainer.finetuning_type == "full":
        return {"finetuning_type": "full"}
    return {
        "finetuning_type": "lora",
        "lora_rank": trainer.lora_rank,
        "lora_alpha": trainer.lora_alpha,
        "lora_target": trainer.lora_target,
    }


def _optimization(trainer: TrainerConfig) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": trainer.per_device_train_batch_size,
        "gradient_accumulation_steps": trainer.gradient_accumulation_steps,
        "learning_rate": trainer.learning_rate,
        "max_grad_norm": trainer.max_grad_norm,
        "weight_decay": trainer.weight_decay,
        "lr_scheduler_type": trainer.lr_scheduler_type,
        "warmup_steps": trainer.warmup_steps,
        "warmup_ratio": trainer.warmup_ratio,
    }


def _evaluation(trainer: TrainerConfig) -> dict[str, Any]:
    return {
        "do_eval": True,
        "eval_dataset": VALIDATION,
        "eval_strategy": trainer.eval_strategy,
        "eval_steps": trainer.eval_steps,
        "per_device_eval_batch_size": trainer.per_device_eval_batch_size,
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def to_yaml(arguments: dict[str, Any]) -> str:
    """The file's text, keys in their order."""
    return yaml.safe_dump(arguments, sort_keys=False, allow_unicode=True)
