"""Copies a version's tensors to a GPU by way of pinned memory, in their order.

Who takes a tensor has it before the ones after it have arrived.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from rl_agent.weights.format.dtypes import torch_dtype
from rl_agent.weights.format.manifest import TensorEntry
from rl_agent.weights.format.pinned import PinnedRing, joins, parts
from rl_agent.weights.store.tensor_sources import tensor_at

if TYPE_CHECKING:
    import torch


def upload(
    view: memoryview, entries: Iterable[TensorEntry], device: "torch.device", *, threads: int
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield each tensor on the device with its name; on the host where the device has no room."""
    runs = list(_runs(entries))
    content = np.frombuffer(view, np.uint8)
    coming = (part for run in runs for part in parts(run[0].start, run[-1].end))

    def read_next(buffer: "torch.Tensor") -> None:
        start, end = next(coming, (0, 0))
        ring.hand_over(buffer, lambda memory: np.copyto(memory[: end - start], content[start:end]))

    with PinnedRing(device, threads=threads) as ring:
        for _ in range(ring.buffers):
            read_next(ring.take())
        for run in runs:
            memory = _on_device(run[0].start, run[-1].end, ring, read_next)
            for entry in run:
                if memory is None:
                    yield entry.name, tensor_at(view, entry)
                    continue
                place = memory[entry.start - run[0].start : entry.end - run[0].start]
                yield entry.name, place.view(torch_dtype(entry.dtype)).view(entry.shape)


def _runs(entries: Iterable[TensorEntry]) -> Iterator[list[TensorEntry]]:
    """Put together what follows each other and has room in one buffer: a copy costs a few microseconds."""
    run: list[TensorEntry] = []
    for entry in entries:
        if run and not joins(run, entry):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _on_device(
    first: int, last: int, ring: PinnedRing, read_next: "Callable[[torch.Tensor], None]"
) -> "torch.Tensor | None":
    """Return the bytes from `first` to `last` on the device; None where it has no room."""
    import torch

    memory: torch.Tensor | None
    try:
        memory = torch.empty(last - first, dtype=torch.uint8, device=ring.device)
    except torch.OutOfMemoryError:
        memory = None
    for start, end in parts(first, last):
        buffer = ring.take()
        if memory is not None:
            memory[start - first : end - first].copy_(buffer[: end - start], non_blocking=True)
        read_next(buffer)
    return memory
