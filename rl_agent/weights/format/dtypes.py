"""Names the types of values that a version can hold, as safetensors does."""

from typing import TYPE_CHECKING

from rl_agent.errors import WeightsError

if TYPE_CHECKING:
    import torch

WIDTH_OF = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of a value."""

FLOATS = ("F64", "F32", "F16", "BF16")
"""May be cast to one another; 8-bit floats, which need scales, and integers are what they are."""

_TORCH_NAME = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}
_NAME_OF = {f"torch.{torch_name}": name for name, torch_name in _TORCH_NAME.items()}


def dtype_name(tensor: "torch.Tensor") -> str:
    """Raises WeightsError for a type that cannot be sent."""
    try:
        return _NAME_OF[str(tensor.dtype)]
    except KeyError:
        raise WeightsError(f"cannot send tensors of type {tensor.dtype}") from None


def kind_of(dtype: str) -> str:
    """`float`, or the type itself where no other may stand in its place."""
    return "float" if dtype in FLOATS else dtype


def torch_dtype(name: str) -> "torch.dtype":
    import torch

    dtype: torch.dtype = getattr(torch, _TORCH_NAME[name])
    return dtype
