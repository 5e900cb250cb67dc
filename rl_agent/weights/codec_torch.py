"""The first half of the codec, finding the changes, in torch: for weights that lie on a GPU.

Gives what `codec.find_changes` gives, bit for bit. Only the changes leave the device.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from rl_agent.weights.codec import DENSE, HEADER, RAW, SAME, Bytes, Changes, pack_changes

if TYPE_CHECKING:
    import torch


def encode(
    base: "torch.Tensor", new: "torch.Tensor", width: int, *, device: AbstractContextManager[object]
) -> bytes:
    """`codec.encode` of two flat uint8 tensors on one device; `device` is held while the device works."""
    with device:
        changes = find_changes(base, new, width)
    values = new.numel() // width
    if changes is None:
        return HEADER.pack(SAME, 0, 0, values, 0, 0)
    packed = pack_changes(changes, limit_bytes=new.numel())
    return HEADER.pack(RAW, 0, 0, values, 0, 0) + new.cpu().numpy().tobytes() if packed is None else packed


def find_changes(base: "torch.Tensor", new: "torch.Tensor", width: int) -> Changes | None:
    """What differs between two flat uint8 tensors; None if nothing does."""
    import torch

    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    old, now = base.view(dtype), new.view(dtype)
    is_changed = old != now
    positions = torch.nonzero(is_changed).flatten()
    if positions.numel() == 0:
        return None
    difference = now[positions] - old[positions]
    size = difference.abs()  # of the most negative value that value itself, whose bits are right
    is_large = (size > 1) | (size < 0)
    rest = size[is_large] - 2
    if positions.numel() >= now.numel() * DENSE:
        gap_bytes, where = 0, [_packed_bits(is_changed)]
    else:
        gaps = torch.diff(positions, prepend=positions.new_tensor([-1])) - 1
        gap_bytes = {1: 1, 2: 2, 3: 4, 4: 4}[_significant_bytes(gaps)]
        where = _planes(gaps, gap_bytes)
    return Changes(
        values=now.numel(),
        changes=positions.numel(),
        large=rest.numel(),
        gap_bytes=gap_bytes,
        where=where,
        signs=_packed_bits(difference < 0),
        is_large=_packed_bits(is_large),
        rest=_planes(rest, _significant_bytes(rest)),
    )


def _significant_bytes(numbers: "torch.Tensor") -> int:
    """Of numbers whose bits are unsigned."""
    if numbers.numel() == 0:
        return 0
    if int(numbers.min()) < 0:
        return numbers.element_size()
    return max(1, -(-int(numbers.max()).bit_length() // 8))


def _planes(numbers: "torch.Tensor", planes: int) -> list[Bytes]:
    import torch

    if planes == 0:
        return []
    by_byte = numbers.contiguous().view(torch.uint8).view(numbers.numel(), numbers.element_size())
    together = by_byte[:, :planes].t().contiguous().cpu().numpy()
    return list(together)


def _packed_bits(mask: "torch.Tensor") -> Bytes:
    import torch

    padded = torch.zeros(-(-mask.numel() // 8) * 8, dtype=torch.uint8, device=mask.device)
    padded[: mask.numel()] = mask
    powers = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=mask.device)
    packed = (padded.view(-1, 8) * powers).sum(1, dtype=torch.uint8)
    return np.asarray(packed.cpu().numpy())
