"""Copies a version's tensors to a GPU by way of pinned memory, in their order.

Who takes a tensor has it before the ones after it have arrived.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from rl_agent.weights.format.dtypes import torch_dtype
from rl_agent.weights.format.manifest import TensorEntry
from rl_agent.weights.format.pinned import PinnedRing, parts
from rl_agent.weights.store.tensor_sources import tensor_at

if TYPE_CHECKING:
    import torch


def upload(
    view: memoryview, entries: Iterable[TensorEntry], device: "torch.device", *, threads: int
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield each tensor on the device with its name; on the host where the device has no room."""
    entries = list(entries)
    content = np.frombuffer(view, np.uint8)
    coming = (part for entry in entries for part in parts(entry.start, entry.end))

    def read_next(buffer: "torch.Tensor") -> None:
        start, end = next(coming, (0, 0))
        ring.hand_over(buffer, lambda memory: np.copyto(memory[: end - start], content[start:end]))

    with PinnedRing(device, threads=threads) as ring:
        for _ in range(ring.buffers):
            read_next(ring.take())
        for entry in entries:
            yield entry.name, _on_device(view, entry, ring, read_next)


def _on_device(
    view: memoryview, entry: TensorEntry, ring: PinnedRing, read_next: "Callable[[torch.Tensor], None]"
) -> "torch.Tensor":
    import torch

    target: torch.Tensor | None
    try:
        target = torch.empty(entry.size_bytes, dtype=torch.uint8, device=ring.device)
    except torch.OutOfMemoryError:
        target = None
    for start, end in parts(entry.start, entry.end):
        buffer = ring.take()
        if target is not None:
            place = target[start - entry.start : end - entry.start]
            place.copy_(buffer[: end - start], non_blocking=True)
        read_next(buffer)
    if target is None:
        return tensor_at(view, entry)
    return target.view(torch_dtype(entry.dtype)).view(entry.shape)
