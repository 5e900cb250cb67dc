"""Estimates the GPU memory of a training step, and chooses what keeps it within a device. Pure.

A step holds what belongs to the weights, divided by the ranks that share them, and what belongs to the tokens
of a micro-batch. `tests/unit/trainer/test_gpu_memory.py` has what was measured on an H100 and an H200, from
0.6B to 8B; the estimate of `trainer=grpo` is within 5 % of it.
"""

import itertools
import math
from dataclasses import dataclass

from rl_agent.config.sections.grpo import GrpoConfig
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.monitor.flops import ModelShape, TowerShape

GIB = 2**30
USABLE_SHARE = 0.95
"""The share of a device that a step may take; CUDA's context, NCCL and fragments have the rest."""
SLEEPING_ENGINE_GIB = 4.0
"""The memory that an engine in turns with the trainer keeps."""
FEATURES_GIB = 1
"""The memory of the features that a frozen vision tower's images keep within a step."""
_PATCH_BYTES = 24
"""Bytes of a patch while a frozen tower computes it, for each of the numbers by which a layer knows it."""
_ADAPTER_BYTES = 2.4
"""Bytes a frozen weight in bf16, its adapter and that one's gradients and moments included."""
_FROZEN_BYTES = 2
"""Bytes a frozen weight in bf16."""
_ZERO_BYTES = {"zero1": (4, 12), "zero2": (2, 14), "zero3": (0, 16)}
"""Bytes a weight of LLaMA-Factory's bf16 training that each device holds, and that all share."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The estimated memory of a step of `trainer=grpo`, and the settings that it is for."""

    activation_checkpointing: float
    offload_optimizer: bool
    needed_gib: float


def activation_bytes(shape: ModelShape) -> float:
    """Return the bytes that one layer keeps of one token for its backward pass, in 16 bits."""
    heads = (shape.heads + shape.kv_heads) * shape.head_dim
    of_mlp = 1.3 if shape.tower is None else 2.3  # as Qwen3-VL, for which Liger has no SwiGLU
    return 2 * (4 * shape.hidden_size + of_mlp * shape.intermediate_size + 4 * heads)


def step_gib(shape: ModelShape, trainer: GrpoConfig, ranks: int, *, share: float, offloads: bool) -> float:
    """Estimate a step's most memory on each device; `share` of the layers compute activations twice."""
    loss, shards = trainer.loss, trainer.parallel.shard_size or ranks
    tokens = max(trainer.batch.token_budget, loss.longest_response)  # a response is not divided
    if trainer.lora.rank is not None:
        weight_bytes = _ADAPTER_BYTES
    else:
        keeps_start = loss.proximal == "iteration" and trainer.mini_batches > 1
        parts = (8, 0 if offloads else 8, 4 * keeps_start, 4 * (loss.kl_in != "none"))
        weight_bytes = float(sum(parts))
    weights = weight_bytes * shape.weights
    kept = shape.layers * (share * 2 * shape.hidden_size + (1 - share) * activation_bytes(shape))
    of_each = 0.0
    if shape.tower is not None:
        has_reference = loss.kl_in != "none" and trainer.lora.rank is None  # its tower is always frozen
        frozen_towers = trainer.freeze_vision_tower + has_reference
        of_each = frozen_towers * (_FROZEN_BYTES * shape.tower.weights + FEATURES_GIB * GIB)
        if trainer.freeze_vision_tower:
            of_each += _PATCH_BYTES * shape.tower.hidden_size * tokens * shape.tower.merged_patches
        else:
            weights += (weight_bytes - 4 * has_reference) * shape.tower.weights
            kept += _kept_of_tower(shape.tower, share)
    logits = trainer.batch.logits_chunk_tokens * shape.vocab_size * 8
    of_tokens = tokens * (kept + activation_bytes(shape)) + logits
    embeddings = (1 if shape.is_tied else 2) * shape.vocab_size * shape.hidden_size
    return (weights / shards + of_each + max(of_tokens, 8 * embeddings)) / GIB


def _kept_of_tower(tower: TowerShape, share: float) -> float:
    """Return the bytes that a trained tower keeps of a token of an image, as all of a micro-batch may be."""
    whole = 2 * (12 * tower.hidden_size + 1.3 * tower.intermediate_size)
    return tower.merged_patches * tower.layers * (share * 2 * tower.hidden_size + (1 - share) * whole)


def choose(
    shape: ModelShape,
    trainer: GrpoConfig,
    ranks: int,
    *,
    device_gib: float,
    engine_share: float = 0.0,
    most_gib: float = math.inf,
) -> StepMemory:
    """Choose the cheapest settings that fit, of those left open; where none fits, those that need least.

    `engine_share` is `engine.gpu_memory_utilization`, which counts where the placement is `shared`. A step is
    to take no more than `most_gib`.
    """
    parallel = trainer.parallel
    shares = [0.0, 0.25, 0.5, 0.75, 1.0]
    if parallel.activation_checkpointing is not None:
        shares = [parallel.activation_checkpointing]
    offloads = [True] if trainer.takes_turns else [False, True]
    if parallel.offload_optimizer is not None:
        offloads = [parallel.offload_optimizer]
    usable = min(most_gib, usable_gib(device_gib, trainer, engine_share=engine_share))
    for share, offload in itertools.product(shares, offloads):
        needed = step_gib(shape, trainer, ranks, share=share, offloads=offload)
        if needed <= usable:
            break
    return StepMemory(share, offload, needed)


def usable_gib(device_gib: float, trainer: GrpoConfig | None = None, *, engine_share: float = 0.0) -> float:
    """Return what a step may take of a device, beside the engine with which a streaming trainer shares it."""
    if trainer is None or trainer.placement == "disaggregated":
        engine_gib = 0.0
    else:
        engine_gib = SLEEPING_ENGINE_GIB if trainer.takes_turns else engine_share * device_gib
    return USABLE_SHARE * device_gib - engine_gib


def update_gib(
    shape: ModelShape, trainer: TrainerConfig, ranks: int, *, stage: str | None, recomputes: bool
) -> float:
    """Estimate LLaMA-Factory's least memory for one sample of `cutoff_len`, its logits left out."""
    own, shared = (2, 0) if trainer.finetuning_type == "lora" else _ZERO_BYTES.get(stage or "", (16, 0))
    kept = 2 * shape.hidden_size if recomputes else activation_bytes(shape)
    of_tokens = trainer.cutoff_len * shape.layers * kept
    return ((own + shared / ranks) * shape.weights + of_tokens) / GIB


def recomputes(shape: ModelShape | None, trainer: TrainerConfig, ranks: int, *, device_gib: float) -> bool:
    """Return `gradient_checkpointing`, settled: true where the longest sample would not fit otherwise."""
    if trainer.gradient_checkpointing is not None:
        return trainer.gradient_checkpointing
    if shape is None or not device_gib:
        return False
    plain = update_gib(shape, trainer, ranks, stage=trainer.deepspeed, recomputes=False)
    return plain > usable_gib(device_gib)
