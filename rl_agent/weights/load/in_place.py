"""Says whether vLLM computes with a model's weights as its loader has put them.

`Worker.reload_weights` makes each layer anew, loads it, processes it and copies it to its place: 0.2 ms a
tensor, in which nothing is generated. Where a layer has its weights as they were loaded, the model's own
`load_weights` writes them to their places at once.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_UNPROCESSED = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
_PROCESS = "process_weights_after_loading"


def is_loaded_in_place(model: "torch.nn.Module", device: "torch.device") -> bool:
    """Return whether no layer on a CUDA device processes its weights; what is not known counts as one."""
    return device.type == "cuda" and not any(_processes(module) for module in model.modules())


def _processes(module: object) -> bool:
    method = getattr(module, "quant_method", None)
    if method is not None and type(method).__name__ not in _UNPROCESSED:
        return True
    if not hasattr(module, _PROCESS):
        return False
    # An attention without weights, whose implementation takes none from elsewhere either.
    process = getattr(type(getattr(module, "impl", None)), _PROCESS, None)
    is_default = process is not None and process.__qualname__.startswith("AttentionImpl")
    return not (type(module).__name__ == "Attention" and is_default)
