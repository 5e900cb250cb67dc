"""Norms, rotary embeddings and SwiGLU as one kernel each, by Liger Kernel (Hsu et al., arXiv:2410.10989).

Written with one PyTorch operation after the other they pass over memory many times; on an H200 that is a
fifth of a training step. The loss stays ours (`logprobs`): Liger's has no entropies.
"""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils import is_liger_kernel_available

from rl_agent.errors import ConfigError

_OURS = {"cross_entropy": False, "fused_linear_cross_entropy": False}
"""Kernels that Liger must not replace; for the rest a model's defaults hold."""


def use_fused_kernels(
    model: nn.Module, mode: bool | None, device: torch.device, *, is_compiled: bool = False
) -> bool:
    """Patch them in if they are wanted, and say whether they are.

    None: where they can be had and the layers are not compiled, which fuses as much.

    Raises ConfigError if they are wanted and cannot be had.
    """
    assert isinstance(model, PreTrainedModel)
    if mode is False or (mode is None and is_compiled):
        return False
    if obstacle := _obstacle(model.config.model_type, device):
        if mode:
            raise ConfigError(
                f"trainer.parallel.use_liger_kernel: {obstacle}; null uses it where it can be had"
            )
        return False
    apply_liger_kernel(model, dict(_OURS))
    return True


def _obstacle(model_type: str, device: torch.device) -> str:
    """Name why there are no fused kernels; empty if there are."""
    if device.type != "cuda":
        return "needs a GPU"
    if not is_liger_kernel_available():
        return "the package liger-kernel is not installed"
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    if model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        return f"liger-kernel has none for models of type {model_type}"
    return ""
