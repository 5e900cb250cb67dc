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
from rl_agent.trainer.parallel import Ranks, shard, whole
from rl_agent.trainer.policy import Policy, build_model, read_config
from rl_agent.trainer.settings import TrainerSettings

_COPIED = ("*.json", "*.jinja", "*.txt", "*.model")
"""Tokenizer, chat template and generation settings; the model's own configuration is written anew."""


def load_policy(settings: TrainerSettings, ranks: Ranks, folder: Path | None = None) -> Policy:
    """The model of `folder`, else `settings.model`, shared between the ranks; each reads its own part.

    Raises ConfigError where the folder holds no safetensors, or not all weights of the model.
    """
    folder = folder or settings.model
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder}: holds no safetensors")
    with torch.device("meta"):
        model = build_model(
            read_config(folder), activation_checkpointing=settings.parallel.activation_checkpointing
        )
    policy = Policy(
        model, temperature=settings.loss.temperature, chunk_tokens=settings.batch.logits_chunk_tokens
    )
    shard(policy, ranks, settings.parallel)
    policy.to_empty(device=ranks.device)
    _fill_buffers(model, ranks.device)
    weights = {name: parameter.data for name, parameter in model.named_parameters()}
    try:
        dcp.load(weights, storage_reader=HuggingFaceStorageReader(str(folder)))
    except dcp.CheckpointException as error:
        raise ConfigError(f"{folder}: does not hold all weights of its model ({error})") from error
    return policy


def _fill_buffers(model: nn.Module, device: torch.device) -> None:
    """Buffers (the angles of rotary embeddings) are in no file: take them from a model of the same kind."""
    assert isinstance(model, PreTrainedModel)
    with torch.device(device):
        for module in model.modules():
            if "inv_freq" in dict(module.named_buffers(recurse=False)):
                fresh = type(module)(model.config)  # type: ignore[call-arg]
                for name, buffer in fresh.named_buffers():
                    module.get_buffer(name).copy_(buffer)


def named_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Whole weights under the model's own names, one at a time; every rank of a row has to iterate."""
    for name, parameter in policy.model.named_parameters():
        yield name, whole(parameter.detach())


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
