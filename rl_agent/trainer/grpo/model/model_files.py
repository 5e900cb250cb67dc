"""Loads models from folders in Hugging Face's format, without any rank holding more than it must."""

import logging
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from transformers import PretrainedConfig, PreTrainedModel

from rl_agent.config.sections.grpo import LoraSettings
from rl_agent.errors import ConfigError
from rl_agent.served_model.weights import read_tensors
from rl_agent.trainer.grpo.model import attention, lora
from rl_agent.trainer.grpo.model.buffers import computed_buffers, set_buffers
from rl_agent.trainer.grpo.model.file_layout import FileLayout
from rl_agent.trainer.grpo.model.fused import use_fused_kernels
from rl_agent.trainer.grpo.model.model_check import Obstacles, compile_ahead, settle_scoring
from rl_agent.trainer.grpo.model.parallel import Ranks, compiles_layers, computing_dtype, shard
from rl_agent.trainer.grpo.model.policy import (
    PolicyModel,
    Scorer,
    build_model,
    read_config,
    takes_another_attention,
)
from rl_agent.trainer.grpo.model.rope import short_context
from rl_agent.trainer.grpo.model.trainable import VISION_TYPES
from rl_agent.trainer.grpo.model.vision import ImageReader
from rl_agent.trainer.grpo.settings import TrainerSettings

_log = logging.getLogger(__name__)


def load_policy(settings: TrainerSettings, ranks: Ranks) -> PolicyModel:
    """Load the model that is trained, with its adapter if it is to have one. Raises like `load_model`."""
    return load_model(settings, ranks, settings.model, settings.lora)


def load_reference(settings: TrainerSettings, ranks: Ranks, policy: PolicyModel) -> Scorer:
    """Load the policy of a KL term. Raises like `load_model`."""
    if settings.lora.rank is not None:
        return lora.WithoutAdapter(policy)
    full = settings.lora.model_copy(update={"rank": None})
    folder = settings.reference or settings.model
    return load_model(settings, ranks, folder, full, is_frozen=True).eval()


def load_model(
    settings: TrainerSettings, ranks: Ranks, folder: Path, adapter: LoraSettings, *, is_frozen: bool = False
) -> PolicyModel:
    """Load the model of a folder, shared between the ranks; each reads its own part.

    Weights that are not trained are held in bf16 where the folder has them so and the layers compute in it:
    half the memory, the same numbers.

    Raises ConfigError where the folder holds no safetensors, or not all weights of the model, and for a model
    that cannot be scored.
    """
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder}: holds no safetensors")
    config = read_config(folder)
    with torch.device("meta"):
        model = _build(config, folder, settings)
        files = FileLayout.of(model, folder)
        if files.unknown and ranks.rank == 0:
            _log.warning(
                "%s: %d tensors of its files have no place in a model of type %s and are passed on as they"
                " are: %s",
                *(folder, len(files.unknown), config.model_type, ", ".join(files.unknown[:3])),
            )
        is_compiled = compiles_layers(model, ranks, settings.parallel)  # an adapter counts for nothing
        use_fused_kernels(model, settings.parallel.use_liger_kernel, ranks.device, is_compiled=is_compiled)
        lora.add_adapter(model, adapter, files)
        if is_frozen:
            model.requires_grad_(False)
    if adapter.rank is not None and ranks.rank == 0 and (experts := lora.experts_of(model)):
        _log.info("trainer.lora: %d tensors of experts get no adapter and stay as they are", len(experts))
    is_half = computing_dtype(ranks, settings.parallel) == torch.bfloat16
    if is_half:
        _halve_frozen(model, folder, files)
    policy = PolicyModel(
        model,
        temperature=settings.loss.temperature,
        chunk_tokens=settings.batch.logits_chunk_tokens,
        packs_up_to=short_context(config.get_text_config().to_dict()),
        files=files,
    )
    if config.model_type in VISION_TYPES:
        policy.reader = ImageReader.load(folder, model)
        if is_half and ranks.device.type == "cuda":
            attention.use_in_tower(model)
    buffers = computed_buffers(model, ranks.device)
    shard(policy, ranks, settings.parallel, is_compiled=is_compiled)
    policy.to_empty(device=ranks.device)
    set_buffers(model, buffers)
    _read(model, folder, files)
    lora.initialize(model, settings.seed)
    obstacles = settle_scoring(policy, ranks, is_half=is_half)
    if ranks.rank == 0 and obstacles.sharing:
        _log.warning("%s: %s", folder, _notice(config.model_type, obstacles, policy.packs_up_to))
    if is_compiled:
        if ranks.rank == 0:
            _log.info("the layers are being compiled, which may take a minute")
        compile_ahead(policy, is_chosen=settings.parallel.compile_layers is not None)
    return policy


def _build(config: PretrainedConfig, folder: Path, settings: TrainerSettings) -> PreTrainedModel:
    """Make the model with packed attention, or the written-out one where its code takes no other."""
    build = partial(
        build_model,
        config,
        activation_checkpointing=settings.parallel.recomputed_share,
        freeze_vision_tower=settings.freeze_vision_tower,
    )
    try:
        model = build()
        if takes_another_attention(model):
            return model
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # what its code does with a name that it does not know
    try:
        return build(implementation="eager")
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        kind = type(error).__name__
        raise ConfigError(f"{folder}: transformers makes no causal model of it ({kind}: {error})") from error


def _notice(kind: str, obstacles: Obstacles, packs_up_to: int | None) -> str:
    again = "the prompt of siblings is computed for each of them"
    if not obstacles.at_once and packs_up_to is None:
        return f"models of type {kind}: {again}, slower than once: {obstacles.sharing}"
    which = "" if obstacles.at_once else f" where one has more than {packs_up_to} tokens"
    why = (
        obstacles.at_once or "its angles depend on the longest sequence, as those of dynamic and long RoPE do"
    )
    what = f"{again}, and sequences are scored one after the other{which}, slower than all at once"
    return f"models of type {kind}: {what}: {why}"


def _read(model: PreTrainedModel, folder: Path, files: FileLayout) -> None:
    """Let each rank read what it holds."""
    weights = lora.base_weights(model)
    targets = dict(target for weight, tensor in weights.items() for target in files.targets(weight, tensor))
    try:
        dcp.load(targets, storage_reader=HuggingFaceStorageReader(str(folder)))
    except dcp.CheckpointException as error:
        raise ConfigError(f"{folder}: cannot be read ({error})") from error


def _halve_frozen(model: nn.Module, folder: Path, files: FileLayout) -> None:
    """Hold in bf16 what is not trained and is in bf16 in its file; nothing is lost by it."""
    tensors = read_tensors(folder)
    for name, weight in lora.base_parameters(model).items():
        is_half = all(tensors[each].dtype == "BF16" for each in files.names_of(name))
        if is_half and not weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)
