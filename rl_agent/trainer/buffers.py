"""Tensors of a model that are no weights: some are in its files, the others follow from its configuration."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl_agent.errors import ConfigError


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Those that a model folder holds beside the weights, under their names."""
    computed = {id(buffer) for _, buffer in _computed_buffers(model)}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) not in computed}


@torch.no_grad()
def compute_buffers(model: nn.Module) -> None:
    """Give those that are in no file their values, as transformers does; weights are loaded after it.

    Raises ConfigError if one is left without.
    """
    assert isinstance(model, PreTrainedModel)
    for tensor in (*model.parameters(), *persistent_buffers(model).values()):
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]  # it would be for nothing
    found = [_computed_over(model, what_is_there) for what_is_there in (1, 0)]
    for (name, once), (_, again) in zip(*found, strict=True):
        if not torch.equal(once, again):
            raise ConfigError(
                f"trainer=grpo cannot train models of type {model.config.model_type}: their buffer {name} is "
                "in no file of the model, and transformers does not compute it again"
            )


def _computed_over(model: PreTrainedModel, what_is_there: int) -> list[tuple[str, Tensor]]:
    for module in model.modules():
        module._is_hf_initialized = False  # type: ignore[assignment]
    for _, buffer in _computed_buffers(model):
        buffer.fill_(what_is_there)
    model.initialize_weights()
    return [(name, buffer.clone()) for name, buffer in _computed_buffers(model)]


def forget_lengths(model: nn.Module) -> None:
    """Make angles that depend on the length of a sequence those of a model that has seen none."""
    for module in model.modules():
        for name, buffer in dict(module.named_buffers(recurse=False)).items():
            if name.endswith("original_inv_freq"):
                setattr(module, name.removesuffix("original_inv_freq") + "inv_freq", buffer)


def _computed_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}", buffer
