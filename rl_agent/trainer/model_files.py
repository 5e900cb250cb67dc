"""Weights from and to folders in Hugging Face's format, without any rank holding more than it must."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from transformers import PreTrainedModel

from rl_agent.errors import ConfigError
from rl_agent.files import remove, sync, sync_tree
from rl_agent.grpo_config import LoraSettings
from rl_agent.trainer import lora
from rl_agent.trainer.buffers import compute_buffers
from rl_agent.trainer.fused import use_fused_kernels
from rl_agent.trainer.parallel import Ranks, computing_dtype, shard, whole
from rl_agent.trainer.policy import Policy, Scorer, build_model, read_config
from rl_agent.trainer.settings import TrainerSettings
from rl_agent.update.weights import read_tensors

_COPIED = ("*.json", "*.jinja", "*.txt", "*.model")
"""Tokenizer, chat template and generation settings; the model's own configuration is written anew."""


def load_policy(settings: TrainerSettings, ranks: Ranks) -> Policy:
    """The model that is trained, with its adapter if it is to have one. Raises like `load_model`."""
    return load_model(settings, ranks, settings.model, settings.lora)


def load_reference(settings: TrainerSettings, ranks: Ranks, policy: Policy) -> Scorer:
    """The policy of a KL term. Raises like `load_model`."""
    if settings.lora.rank is not None:
        return lora.WithoutAdapter(policy)
    full = settings.lora.model_copy(update={"rank": None})
    folder = settings.reference or settings.model
    return load_model(settings, ranks, folder, full, is_frozen=True).eval()


def load_model(
    settings: TrainerSettings, ranks: Ranks, folder: Path, adapter: LoraSettings, *, is_frozen: bool = False
) -> Policy:
    """The model of a folder, shared between the ranks; each reads its own part.

    Weights that are not trained are held in bf16 where the folder has them so and the layers compute in it:
    half the memory, the same numbers.

    Raises ConfigError where the folder holds no safetensors, or not all weights of the model.
    """
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder}: holds no safetensors")
    with torch.device("meta"):
        model = build_model(
            read_config(folder), activation_checkpointing=settings.parallel.activation_checkpointing
        )
        use_fused_kernels(model, settings.parallel.use_liger_kernel, ranks.device)
        lora.add_adapter(model, adapter)
        if is_frozen:
            model.requires_grad_(False)
    if computing_dtype(ranks, settings.parallel) == torch.bfloat16:
        _halve_frozen(model, folder)
    policy = Policy(
        model, temperature=settings.loss.temperature, chunk_tokens=settings.batch.logits_chunk_tokens
    )
    shard(policy, ranks, settings.parallel)
    policy.to_empty(device=ranks.device)
    compute_buffers(model)
    try:
        dcp.load(lora.base_weights(model), storage_reader=HuggingFaceStorageReader(str(folder)))
    except dcp.CheckpointException as error:
        raise ConfigError(f"{folder}: does not hold all weights of its model ({error})") from error
    lora.initialize(model, settings.seed)
    return policy


def _halve_frozen(model: nn.Module, folder: Path) -> None:
    """Hold in bf16 what is not trained and is in bf16 in its file; nothing is lost by it."""
    files = read_tensors(folder)
    for name, weight in lora.base_parameters(model).items():
        is_half = name in files and files[name].dtype == "BF16"
        if is_half and not weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)


def named_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Whole weights as they are served, one at a time; every rank of a row has to iterate."""
    for name, weight in lora.served_weights(policy.model).items():
        yield name, whole(weight.detach())


def export(policy: Policy, ranks: Ranks, base: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write what transformers and vLLM load; `base` gives the tokenizer. The folder appears whole."""
    tensors = {}
    for name, weight in named_weights(policy):
        if ranks.rank == 0:
            tensors[name] = weight.to("cpu", dtype)
    if ranks.rank != 0:
        return
    growing = folder.with_name(folder.name + ".tmp")
    remove(growing)
    growing.mkdir(parents=True)
    for pattern in _COPIED:
        for file in base.glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copy2(file, growing / file.name)
    model = policy.model
    assert isinstance(model, PreTrainedModel)
    model.config.dtype = dtype
    model.save_pretrained(growing, state_dict=tensors)
    sync_tree(growing)
    remove(folder)
    growing.rename(folder)
    sync(folder.parent)
