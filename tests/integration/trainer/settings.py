"""Settings for tests of the trainer; what a test is about, it says itself."""

from pathlib import Path
from typing import Any

from rl_agent.config.sections.grpo import BatchSettings, LoraSettings, LossSettings
from rl_agent.trainer.grpo.settings import TrainerSettings

LOSS: dict[str, Any] = {
    "advantage": "grpo",
    "rewards": "together",
    "reward_weights": {},
    "drop_uninformative": False,
    "normalization": "token_mean",
    "constant_length": 64,
    "policy_loss": "ppo",
    "sapo_temperature_positive": 1.0,
    "sapo_temperature_negative": 1.05,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "dual_clip": 3.0,
    "proximal": "current",
    "correction": "truncate",
    "correction_low": 0.5,
    "correction_high": 2.0,
    "sequence_mask": "none",
    "sequence_mask_bound": None,
    "kl_in": "none",
    "kl_estimator": "k3",
    "kl_coefficient": 0.1,
    "entropy_coefficient": 0.0,
    "temperature": 1.0,
    "overlong": "keep",
    "overlong_cache": None,
    "overlong_penalty": 1.0,
    "longest_response": 64,
}
LORA: dict[str, Any] = {"rank": None, "alpha": 8, "targets": "all-linear", "publish": "merged"}
BATCH: dict[str, Any] = {
    "token_budget": 150,
    "logits_chunk_tokens": 32,
    "max_staleness": 0,
    "allow_mixed_versions": False,
    "finish_timeout_s": 60.0,
    "order": "arrival",
}
PARALLEL: dict[str, Any] = {
    "shard_size": None,
    "reshard_after_forward": True,
    "precision": "fp32",
    "activation_checkpointing": 0.0,
    "offload_optimizer": False,
    "compile_layers": None,
    "use_liger_kernel": None,
    "peer_timeout_s": 60.0,
}
OPTIMIZER: dict[str, Any] = {
    "learning_rate": 1e-3,
    "schedule": "constant",
    "warmup_steps": 0,
    "decay_steps": None,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}


def loss_settings(**changes: Any) -> LossSettings:
    return LossSettings.model_validate(LOSS | changes)


def lora_settings(**changes: Any) -> LoraSettings:
    return LoraSettings.model_validate(LORA | changes)


def batch_settings(**changes: Any) -> BatchSettings:
    return BatchSettings.model_validate(BATCH | changes)


def trainer_settings(
    model: Path,
    output: Path,
    *,
    groups: int = 6,
    mini_batches: int = 1,
    **changes: dict[str, Any],
) -> TrainerSettings:
    """`changes` are of the sections that they name."""
    sections = {
        "loss": LOSS,
        "batch": BATCH,
        "parallel": PARALLEL,
        "lora": LORA,
        "optimizer": OPTIMIZER,
        "checkpoint": {"every_steps": 1, "every": 1, "keep": 2},
    }
    merged: dict[str, Any] = {name: values | changes.get(name, {}) for name, values in sections.items()}
    top: dict[str, Any] = {"model": model, "reference": None, "first_version": 0, "output": output}
    top |= {"metrics": output / "metrics.jsonl", "export_dtype": "float32", "seed": 3}
    top |= {"groups": groups, "mini_batches": mini_batches, "stream": None}
    top |= {"price_per_hour": 0.0, "peak_tflops": None, "freeze_vision_tower": True}
    return TrainerSettings.model_validate(top | merged)
