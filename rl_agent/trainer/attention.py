"""Causal attention over packed sequences: no token sees another sequence's, and none attends to padding.

Registered with transformers under `NAME`; the model's forward gets `boundaries` and `max_length` (see
`batch.PackedBatch`) and hands them down to every layer. A layer may ask for a sliding window, for scores that
are capped (Gemma 2) and for sinks (gpt-oss). On a CUDA device in half precision it is one call of PyTorch's
variable-length flash attention, elsewhere one call of scaled-dot-product attention for each sequence: exact,
without a mask, at a cost of Σ L² rather than (Σ L)². What neither of them computes is written out, a block of
queries at a time, so that the scores of a whole sequence are never held.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

NAME = "packed"

_SUPPORTED = frozenset(inspect.signature(varlen_attn).parameters)
"""What this PyTorch's variable-length attention can be asked for: it differs between versions."""
_FLASH_HEAD = 256
"""The largest size of a head that its kernel knows."""
_BLOCK_SCORES = 2**26
"""Scores that a block has at most."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    boundaries: Tensor,
    max_length: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window if sliding_window and sliding_window < max_length else None
    if softcap is not None or s_aux is not None:
        written = partial(_written_out, scale=scale, window=window, softcap=softcap, sinks=s_aux)
        return _one_by_one(query, key, value, boundaries, written), None
    is_half = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    if is_half and max(query.shape[-1], value.shape[-1]) <= _FLASH_HEAD and _knows(window):
        return _flash(query, key, value, scale, window, boundaries, max_length), None
    return _one_by_one(query, key, value, boundaries, partial(_exact, scale=scale, window=window)), None


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of one sequence, [1, heads, tokens, size]."""


@torch.compiler.disable  # it would be compiled anew for every number of sequences
def _one_by_one(query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, attend: Attention) -> Tensor:
    lengths = boundaries.diff().tolist()
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    return torch.cat([attend(q, k, v) for q, k, v in parts], dim=2).transpose(1, 2).contiguous()


def _exact(query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None) -> Tensor:
    length = query.shape[2]
    if window is None or window >= length:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    outputs = []
    for queries, keys, mask in _blocks(length, max(window, 64), window, query.device):
        q, k, v = query[:, :, queries], key[:, :, keys], value[:, :, keys]
        outputs.append(scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True))
    return torch.cat(outputs, dim=2)


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    copies = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
    heads, length = query.shape[1:3]

    def block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(2, 3)).float() * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is not None:  # a key of its own, which has no value
            scores = torch.cat([scores, sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
        weights = scores.softmax(-1)[..., : k.shape[2]]
        return weights.to(v.dtype) @ v

    outputs = []
    size = max(16, _BLOCK_SCORES // (heads * length))
    for queries, keys, mask in _blocks(length, size, window, query.device):
        parts = query[:, :, queries], key[:, :, keys], value[:, :, keys], mask
        outputs.append(checkpoint(block, *parts, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs, dim=2)


def _blocks(
    length: int, size: int, window: int | None, device: torch.device
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Blocks of `size` queries, the keys that they see, and who sees which."""
    for start in range(0, length, size):
        stop = min(length, start + size)
        first = 0 if window is None else max(0, start - window + 1)
        distance = torch.arange(start, stop, device=device)[:, None] - torch.arange(
            first, stop, device=device
        )
        mask = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        yield slice(start, stop), slice(first, stop), mask


def _knows(window: int | None) -> bool:
    """Whether this PyTorch's kernel has windows, if one is wanted."""
    return window is None or "window_size" in _SUPPORTED


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    boundaries: Tensor,
    max_length: int,
) -> Tensor:
    left = -1 if window is None else window - 1
    options: dict[str, Any] = (
        {"window_size": (left, 0)} if "window_size" in _SUPPORTED else {"is_causal": True}
    )
    size = value.shape[-1]
    wide = -(-max(query.shape[-1], size) // 8) * 8  # the kernel wants one size for all three
    query, key, value = (
        pad(t, (0, wide - t.shape[-1])) if t.shape[-1] < wide else t for t in (query, key, value)
    )
    if "scale" in _SUPPORTED:
        options["scale"] = scale
    else:  # its own scale is 1 / √size
        query = query * (scale * wide**0.5)
    if "enable_gqa" in _SUPPORTED:
        options["enable_gqa"] = True
    else:
        copies = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    output: Any = varlen_attn(q, k, v, boundaries, boundaries, max_length, max_length, **options)
    return output[None, ..., :size]


def register() -> None:
    """Make transformers know it: a model with `attn_implementation=NAME` then uses it and builds no mask."""
    AttentionInterface.register(NAME, packed_attention)
