"""Handles a model's buffers: some are in its files, the others follow from its configuration."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl_agent.errors import ConfigError


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """List the buffers that a model folder holds beside the weights, under their names."""
    computed = {path for _, _, path in _computed_buffers(model)}
    return {name: buffer for name, buffer in model.named_buffers() if name not in computed}


@torch.no_grad()
def computed_buffers(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Compute the other buffers as transformers does, for a model on the meta device.

    Raises ConfigError if nothing says what is in one.
    """
    assert isinstance(model, PreTrainedModel)
    for tensor in (*model.parameters(), *persistent_buffers(model).values()):
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]  # left as it is, that is on meta
    for module, name, _ in _computed_buffers(model):
        module._buffers[name] = torch.empty_like(module.get_buffer(name), device=device)
    once, again = (_computed_over(model, what_is_there) for what_is_there in (1, 0))
    for name, buffer in once.items():
        if not torch.equal(buffer, again[name]):
            raise ConfigError(
                f"trainer=grpo cannot train models of type {model.config.model_type}: their buffer {name} is "
                "in no file of the model, and transformers does not compute it again"
            )
    return once


@torch.no_grad()
def set_buffers(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set the values of `computed_buffers`, once the model is on its device."""
    for name, value in values.items():
        model.get_buffer(name).copy_(value)


def _computed_over(model: PreTrainedModel, what_is_there: int) -> dict[str, Tensor]:
    for module in model.modules():
        module._is_hf_initialized = False  # type: ignore[assignment]
    for module, name, _ in _computed_buffers(model):
        module.get_buffer(name).fill_(what_is_there)
    model.initialize_weights()
    return {path: module.get_buffer(name).clone() for module, name, path in _computed_buffers(model)}


def forget_lengths(model: nn.Module) -> None:
    """Make angles that depend on the length of a sequence those of a model that has seen none."""
    for module in model.modules():
        for name, buffer in dict(module.named_buffers(recurse=False)).items():
            if name.endswith("original_inv_freq"):
                setattr(module, name.removesuffix("original_inv_freq") + "inv_freq", buffer)


def _computed_buffers(model: nn.Module) -> list[tuple[nn.Module, str, str]]:
    """List those buffers with their module, their name there and their name in the model."""
    return [
        (module, name, f"{prefix}.{name}")
        for prefix, module in model.named_modules()
        for name, _ in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set
    ]
