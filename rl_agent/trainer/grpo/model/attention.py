"""Causal attention over packed sequences: no token sees another sequence's, and none attends to padding.

Registered with transformers under `NAME`; the model's forward gets the boundaries of sequences (see
`batch.PackedBatch`) and hands them down to every layer. Where sequences share prefixes, the queries of a
sequence are those of its own tokens, its last ones; keys and values are copied for each that sees them.

A layer may ask for a sliding window, for scores that are capped (Gemma 2) and for sinks (gpt-oss). On a CUDA
device in half precision it is one call of PyTorch's variable-length flash attention; in fp32 one call of
scaled-dot-product attention for all sequences of about one length, which computes shared prefixes for each;
on a CPU one for each sequence, where shared calls brought nothing. All are exact, without a mask of all
tokens, at a cost of Σ L² rather than (Σ L)². What none of them computes is written out, a block of queries at
a time, so that the scores of a whole sequence are never held.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

NAME = "packed"
IN_TOWER = "packed-flash"
"""The name of `tower_attention`: transformers tells one with "flash" in it where each image begins."""

_SUPPORTED = frozenset(inspect.signature(varlen_attn).parameters)
"""Options of this PyTorch's variable-length attention, which differ between versions."""
_FLASH_HEAD = 256
"""The largest size of a head that its kernel knows."""
_BLOCK_SCORES = 2**26
"""Scores that a block has at most."""
_MAX_FILLED = 1.2
"""Tokens of a call's rows, those that fill them up included, per token."""


def use(model: PreTrainedModel, name: str) -> None:
    """Let the layers of a model compute by this attention; a vision tower keeps its own."""
    model.set_attn_implementation(
        {"": name, "text_config": name} if hasattr(model.config, "vision_config") else name
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    boundaries: Tensor,
    key_boundaries: Tensor,
    key_places: Tensor | None,
    max_length: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers asks: [1, heads, tokens, size] in, [1, tokens, heads, size] out."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window if sliding_window and sliding_window < max_length else None
    is_half = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    is_plain = softcap is None and s_aux is None and _supports_window(window)
    if is_half and is_plain and max(query.shape[-1], value.shape[-1]) <= _FLASH_HEAD:
        lengths = boundaries, key_boundaries, max_length
        return _flash(query, key, value, scale, window, *lengths, key_places=key_places), None
    if key_places is not None:
        key, value = _copied(key, key_places, 2), _copied(value, key_places, 2)
    one_by_one = partial(_one_by_one, query, key, value, boundaries, key_boundaries)
    if softcap is not None or s_aux is not None:
        return one_by_one(
            partial(_written_out, scale=scale, window=window, softcap=softcap, sinks=s_aux)
        ), None
    if query.is_cuda and window is None:
        if key_places is None:
            return _in_rows(query, key, value, boundaries, scale), None
        return _in_whole_rows(query, key, value, boundaries, key_boundaries, key_places, scale), None
    return one_by_one(partial(_exact, scale=scale, window=window)), None


def use_in_tower(model: Any) -> None:
    """Let the vision tower of a model on a GPU compute all images of a batch in one call for each layer.

    Otherwise it waits for the GPU in each layer, and makes a call for each image; a windowed one (Qwen2.5-VL)
    for each window.
    """
    model.model.visual.config._attn_implementation = IN_TOWER


def tower_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: Tensor | int,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute what the patches of each image, or window, see of each other; in half precision on a GPU."""
    # A bound is enough for the kernel; to ask a tensor for its value would wait for the GPU.
    longest = max_length_q if isinstance(max_length_q, int) else query.shape[2]
    lengths = cu_seq_lens_q, cu_seq_lens_q, longest
    return _flash(query, key, value, scaling, None, *lengths, key_places=None, is_causal=False), None


def _copied(tensor: Tensor, places: Tensor, dim: int) -> Tensor:
    """Copy keys or values to the sequences that see them; gradients of all copies are added in fp32."""
    apply: Callable[..., Tensor] = _Copied.apply
    return apply(tensor, places, dim)


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, places: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape, ctx.dim = tensor.shape, dim
        return tensor.index_select(dim, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        precise = gradient if gradient.dtype == torch.float64 else gradient.float()
        total = precise.new_zeros(ctx.shape).index_add_(ctx.dim, places, precise)
        return total.to(gradient.dtype), None, None


@torch.compiler.disable
def _in_whole_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Tensor,
    key_boundaries: Tensor,
    key_places: Tensor,
    scale: float,
) -> Tensor:
    """Compute whole sequences in rows, and keep what belongs to their own tokens."""
    output = _in_rows(query.index_select(2, key_places), key, value, key_boundaries, scale)
    shared = (key_boundaries - boundaries)[1:].repeat_interleave(boundaries.diff())
    own: Tensor = output.index_select(1, torch.arange(len(shared), device=shared.device) + shared)
    return own


@torch.compiler.disable
def _in_rows(query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, scale: float) -> Tensor:
    """Compute sequences of about one length as the rows of one call, filled up at their ends.

    What fills a row up comes after every token of it, so none of them sees it.
    """
    calls, places = _rows(tuple(boundaries.tolist()), query.device)
    parts = []
    for shape, source, tokens in calls:
        q, k, v = (
            t[0].index_select(1, source).unflatten(1, shape).transpose(0, 1) for t in (query, key, value)
        )
        rows = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        parts.append(rows.transpose(1, 2).flatten(0, 1).index_select(0, tokens))
    return torch.cat(parts).index_select(0, places)[None]


@lru_cache(maxsize=4)
def _rows(
    boundaries: tuple[int, ...], device: torch.device
) -> tuple[list[tuple[tuple[int, int], Tensor, Tensor]], Tensor]:
    """Plan the calls: for each its rows, what fills them, and which of it are tokens; then the way back.

    Kept, for every layer asks for the same micro-batch in every pass.
    """
    lengths = torch.tensor(boundaries).diff()
    calls: list[list[int]] = []
    longest = tokens = 0
    for sequence in lengths.argsort(descending=True).tolist():
        length = int(lengths[sequence])
        if not calls or (len(calls[-1]) + 1) * longest > _MAX_FILLED * (tokens + length):
            calls.append([])
            longest, tokens = length, 0
        calls[-1].append(sequence)
        tokens += length
    plans, order = [], []
    for sequences in calls:
        starts = torch.tensor([boundaries[sequence] for sequence in sequences])[:, None]
        within = torch.arange(int(lengths[sequences[0]]))[None]
        is_token = within < lengths[sequences][:, None]
        source = torch.where(is_token, starts + within, starts)
        rows, length = source.shape
        plans.append(
            ((rows, length), source.flatten().to(device), is_token.flatten().nonzero()[:, 0].to(device))
        )
        order.append(source[is_token])
    return plans, torch.cat(order).argsort().to(device)


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The attention of one sequence, [1, heads, tokens, size]; queries may be those of its last tokens alone."""


@torch.compiler.disable  # it would be compiled anew for every number of sequences
def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, boundaries: Tensor, key_boundaries: Tensor, attend: Attention
) -> Tensor:
    own, lengths = boundaries.diff().tolist(), key_boundaries.diff().tolist()
    parts = zip(query.split(own, dim=2), key.split(lengths, dim=2), value.split(lengths, dim=2), strict=True)
    return torch.cat([attend(q, k, v) for q, k, v in parts], dim=2).transpose(1, 2).contiguous()


def _exact(query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None) -> Tensor:
    own, length = query.shape[2], key.shape[2]
    window = None if window is None or window >= length else window
    if window is None and own == length:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    outputs = []
    for queries, keys, mask in _blocks(own, length, max(window or own, 64), window, query.device):
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
    heads, own, length = query.shape[1], query.shape[2], key.shape[2]

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
    for queries, keys, mask in _blocks(own, length, size, window, query.device):
        parts = query[:, :, queries], key[:, :, keys], value[:, :, keys], mask
        outputs.append(checkpoint(block, *parts, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs, dim=2)


def _blocks(
    own: int, length: int, size: int, window: int | None, device: torch.device
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield blocks of `size` of the `own` last queries, the keys that they see, and who sees which."""
    before = length - own
    for start in range(0, own, size):
        stop = min(own, start + size)
        last = before + stop
        first = 0 if window is None else max(0, before + start - window + 1)
        queries = torch.arange(before + start, last, device=device)
        distance = queries[:, None] - torch.arange(first, last, device=device)
        mask = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        yield slice(start, stop), slice(first, last), mask


def _supports_window(window: int | None) -> bool:
    """Return whether this PyTorch's kernel has windows, if one is wanted."""
    return window is None or "window_size" in _SUPPORTED


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    window: int | None,
    boundaries: Tensor,
    key_boundaries: Tensor,
    max_length: int,
    *,
    key_places: Tensor | None,
    is_causal: bool = True,
) -> Tensor:
    seen = (-1 if window is None else window - 1, 0 if is_causal else -1)
    options: dict[str, Any] = (
        {"window_size": seen} if "window_size" in _SUPPORTED else {"is_causal": is_causal}
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
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if key_places is not None:
        k, v = _copied(k, key_places, 0), _copied(v, key_places, 0)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    output: Any = varlen_attn(q, k, v, boundaries, key_boundaries, max_length, max_length, **options)
    shown: Tensor = output[None, ..., :size]
    return shown


def register() -> None:
    """Make transformers know both: a model with `attn_implementation=NAME` then builds no mask."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionInterface.register(IN_TOWER, tower_attention)
