"""Rearranges weights for the processor where vLLM 0.28 leaves that out after a load on a CPU.

On a CPU its kernels take weights that are arranged for the processor.

- Experts are arranged when the kernel of their layer is made. Loaded again, they are put as they come where
  the kernel takes them for arranged. So the kernels are made anew.
- An output layer that is tied to the embedding is loaded with that and arranged by nobody: its kernel keeps
  the old weights. So it is arranged afterwards.

Newer versions may do it themselves; then this costs a little time and changes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def repacking(model: "torch.nn.Module", device: "torch.device") -> Iterator[None]:
    """Rearrange weights for the processor around `Worker.reload_weights`."""
    if device.type != "cpu":
        yield
        return
    for _, module in model.named_modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
    yield
    for _, module in model.named_modules():
        if keeps_two_forms(module):
            module.quant_method.process_weights_after_loading(module)


def keeps_two_forms(module: Any) -> bool:
    """Return whether a layer has its weight as a parameter and, besides, arranged for the processor."""
    weight = getattr(module, "weight", None)
    return hasattr(module, "cpu_linear") and weight is not None and weight.ndim == 2 and weight.numel() > 0
