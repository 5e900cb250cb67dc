"""Causal attention over packed sequences: no token sees another sequence's, and none attends to padding.

Registered with transformers under `NAME`; the model's forward gets `boundaries` and `max_length` (see
`batch.PackedBatch`) and hands them down to every layer. On a CUDA device in half precision it is one call of
PyTorch's variable-length flash attention; elsewhere one call of scaled-dot-product attention for each
sequence, which is exact, needs no mask, and costs Σ L² rather than (Σ L)².
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "packed"

_SUPPORTED = frozenset(inspect.signature(varlen_attn).parameters)
"""What this PyTorch's variable-length attention can be asked for: it differs between versions."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    boundaries: Tensor,
    max_length: int,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _flash(query, key, value, scaling, boundaries, max_length), None
    return _one_by_one(query, key, value, scaling, boundaries), None


@torch.compiler.disable  # it would be compiled anew for every number of sequences
def _one_by_one(query: Tensor, key: Tensor, value: Tensor, scaling: float, boundaries: Tensor) -> Tensor:
    lengths = boundaries.diff().tolist()
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        for q, k, v in parts
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, boundaries: Tensor, max_length: int
) -> Tensor:
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in _SUPPORTED else {"is_causal": True}
    if "scale" in _SUPPORTED:
        options["scale"] = scaling
    else:  # its own scale is 1 / √size
        query = query * (scaling * query.shape[-1] ** 0.5)
    if "enable_gqa" in _SUPPORTED:
        options["enable_gqa"] = True
    else:
        copies = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    output: Any = varlen_attn(q, k, v, boundaries, boundaries, max_length, max_length, **options)
    return output[None]


def register() -> None:
    """Make transformers know it: a model with `attn_implementation=NAME` then uses it and builds no mask."""
    AttentionInterface.register(NAME, packed_attention)
