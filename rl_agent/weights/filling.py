"""A source's tensors to their places in a version's file; those of a GPU by way of pinned memory.

    GPU: cast there ─► one of a few pinned buffers ─► threads ─► the file
            goes on with the next meanwhile

A GPU writes to other memory several times slower, and whoever asked for that waits for it.
"""

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.draft_file import DraftFile
from rl_agent.weights.dtypes import torch_dtype
from rl_agent.weights.manifest import Layout, TensorEntry
from rl_agent.weights.sources import Source, tensor_bytes, tensor_in

if TYPE_CHECKING:
    import torch

_BUFFER_BYTES = 2**24


def fill(file: DraftFile, layout: Layout, source: Source, *, threads: int) -> "torch.device | None":
    """Write every tensor to its place, and zeros between them: the file may have held another version.

    Returns the GPU that they were on, None if they were on none. Raises WeightsError if the source gives
    other tensors than it said, or there is no room.
    """
    ends = [entry.start + entry.size_bytes for entry in layout.tensors]
    starts = [entry.start for entry in layout.tensors[1:]] + [layout.size_bytes]
    for end, start in zip(ends, starts, strict=True):
        file.write(end, bytes(start - end))
    places = {entry.name: entry for entry in layout.tensors}
    waiting = set(places)
    copies: DeviceCopies | None = None
    try:
        for name, tensor in source.tensors():
            if name not in waiting or tuple(tensor.shape) != places[name].shape:
                raise WeightsError(f"{name}: came twice, or in another shape than it was said to have")
            waiting.remove(name)
            if tensor.device.type != "cuda":
                _write(file, places[name], tensor)
                continue
            if copies is None:
                copies = DeviceCopies(file, tensor.device, threads=threads)
            copies.start(places[name], tensor)
    finally:
        if copies is not None:
            copies.finish()
    if waiting:
        raise WeightsError(f"{min(waiting)}: did not come")
    return None if copies is None else copies.device


def _write(file: DraftFile, entry: TensorEntry, tensor: "torch.Tensor") -> None:
    place = file.place(entry.start, entry.start + entry.size_bytes)
    if place is None:
        file.write(entry.start, tensor_bytes(tensor, entry.dtype))
    else:
        tensor_in(place, entry).copy_(tensor)


class DeviceCopies:
    """Copies from one device that are under way: two buffers a thread."""

    def __init__(self, file: DraftFile, device: "torch.device", *, threads: int) -> None:
        self.device = device
        self._file = file
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        for _ in range(2 * threads):
            self._free.put(pinned(_BUFFER_BYTES, device))
        self._threads = ThreadPoolExecutor(threads, "weights")
        self._started: list[Future[None]] = []

    def start(self, entry: TensorEntry, tensor: "torch.Tensor") -> None:
        """The tensor may change in a later operation of its device's current stream."""
        import torch

        content = tensor.to(torch_dtype(entry.dtype)).contiguous().reshape(-1).view(torch.uint8)
        for at in range(0, entry.size_bytes, _BUFFER_BYTES):
            part = content[at : at + _BUFFER_BYTES]
            buffer = self._free.get()
            buffer[: part.numel()].copy_(part, non_blocking=True)
            copied = when_done(self.device)
            end = at + part.numel()
            write = self._threads.submit(self._write, entry.start + at, entry.start + end, buffer, copied)
            self._started.append(write)

    def finish(self) -> None:
        """Wait for all of them. Raises WeightsError if there is no room in the file."""
        self._threads.shutdown()
        for write in self._started:
            write.result()

    def _write(self, start: int, end: int, buffer: "torch.Tensor", copied: Callable[[], None]) -> None:
        try:
            copied()
            content: Any = buffer.numpy()[: end - start]
            place = self._file.place(start, end)
            if place is None:
                self._file.write(start, memoryview(content))
            else:
                np.copyto(np.frombuffer(place, np.uint8), content)
        finally:
            self._free.put(buffer)


def pinned(size_bytes: int, device: "torch.device") -> "torch.Tensor":
    """Memory of the host that the device reads and writes at the speed of its link."""
    import torch

    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def when_done(device: "torch.device") -> Callable[[], None]:
    """Call it to wait until the device has done what it was asked so far."""
    import torch

    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.synchronize
