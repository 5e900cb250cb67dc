"""Names the types of values that a version can hold, as safetensors does."""

from typing import TYPE_CHECKING

from rl_agent.errors import WeightsError

if TYPE_CHECKING:
    import torch

_TYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
"""The name in torch, and the bytes of a value."""

WIDTH_OF = {name: width for name, (_, width) in _TYPES.items()}
_NAME_OF = {f"torch.{torch_name}": name for name, (torch_name, _) in _TYPES.items()}

FLOATS = ("F64", "F32", "F16", "BF16")
"""May be cast to one another; 8-bit floats, which need scales, and integers are what they are."""


def dtype_name(tensor: "torch.Tensor") -> str:
    """Return the name of a tensor's type. Raises WeightsError for one that cannot be sent."""
    try:
        return _NAME_OF[str(tensor.dtype)]
    except KeyError:
        raise WeightsError(f"cannot send tensors of type {tensor.dtype}") from None


def kind_of(dtype: str) -> str:
    """Return `float`, or the type itself where no other may stand in its place."""
    return "float" if dtype in FLOATS else dtype


def torch_dtype(name: str) -> "torch.dtype":
    import torch

    dtype: torch.dtype = getattr(torch, _TYPES[name][0])
    return dtype
