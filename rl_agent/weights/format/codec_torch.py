"""Finds the changed values of a block with torch, on a GPU: the first half of the codec.

Finds what `codec.encode` finds, bit for bit. Blocks go to the device and only their changes leave it,
so it needs no room for a version, let alone for two.
"""

import threading
from typing import TYPE_CHECKING

import numpy as np

from rl_agent.weights.format.codec import DENSE, Bytes, Changes, pack_block
from rl_agent.weights.format.pinned import pinned

if TYPE_CHECKING:
    import torch


class DeviceCodec:
    """Encodes as `codec.encode` does, and finds the changes of blocks in host memory on a device.

    It has one block at a time, so that what finding takes there stays bounded; each thread that calls has
    pinned memory for one block and its base.
    """

    def __init__(self, device: "torch.device", block_bytes: int) -> None:
        self._device = device
        self._block_bytes = block_bytes
        self._turn = threading.Lock()
        self._own = threading.local()

    def encode(self, base: memoryview, new: memoryview, width: int) -> bytes:
        """Raises torch.OutOfMemoryError if the device has no room for it."""
        old, now = self._pinned(base, 0), self._pinned(new, 1)
        with self._turn:
            old, now = (block.to(self._device, non_blocking=True) for block in (old, now))
            changes = _find_changes(old, now, width)
        return pack_block(changes, new, width)

    def _pinned(self, block: memoryview, half: int) -> "torch.Tensor":
        if not hasattr(self._own, "memory"):
            self._own.memory = [pinned(self._block_bytes, self._device) for _ in range(2)]
        there: torch.Tensor = self._own.memory[half][: len(block)]
        np.copyto(there.numpy(), np.frombuffer(block, np.uint8))
        return there


def _find_changes(base: "torch.Tensor", new: "torch.Tensor", width: int) -> Changes | None:
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
        changes=positions.numel(),
        large=rest.numel(),
        gap_bytes=gap_bytes,
        where=where,
        signs=_packed_bits(difference < 0),
        is_large=_packed_bits(is_large),
        rest=_planes(rest, _significant_bytes(rest)),
    )


def _significant_bytes(numbers: "torch.Tensor") -> int:
    """Return the bytes of the largest number; the bits of all are unsigned."""
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
