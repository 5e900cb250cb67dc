"""A version's tensors onto a GPU, in their order: the other way of `filling`.

    the version's memory ─► threads ─► pinned buffers, in a ring ─► GPU, one tensor after the other

Who takes a tensor has it before the ones after it have arrived.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_agent.weights.dtypes import torch_dtype
from rl_agent.weights.filling import pinned, when_done
from rl_agent.weights.manifest import TensorEntry
from rl_agent.weights.sources import tensor_at

if TYPE_CHECKING:
    import torch

_BUFFER_BYTES = 2**24
_PER_THREAD = 2


def upload(
    view: memoryview, entries: Iterable[TensorEntry], device: "torch.device", *, threads: int
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Each tensor with its name, on the device; on the host those for which the device has no room."""
    entries = list(entries)
    with ThreadPoolExecutor(threads, "upload") as pool:
        ring = _Ring(view, _parts(entries), device, pool, buffers=_PER_THREAD * threads)
        for entry in entries:
            yield entry.name, _on_device(view, entry, device, ring)


def _on_device(view: memoryview, entry: TensorEntry, device: "torch.device", ring: "_Ring") -> "torch.Tensor":
    import torch

    try:
        target = torch.empty(entry.size_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        for _ in _parts([entry]):
            ring.skip()
        return tensor_at(view, entry)
    for start, end in _parts([entry]):
        ring.copy_to(target[start - entry.start : end - entry.start])
    return target.view(torch_dtype(entry.dtype)).view(entry.shape)


def _parts(entries: Iterable[TensorEntry]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        end = entry.start + entry.size_bytes
        for start in range(entry.start, end, _BUFFER_BYTES):
            yield start, min(start + _BUFFER_BYTES, end)


class _Ring:
    """Parts of a blob that are on their way into pinned memory, as many as there are buffers."""

    def __init__(
        self,
        view: memoryview,
        parts: Iterator[tuple[int, int]],
        device: "torch.device",
        pool: ThreadPoolExecutor,
        *,
        buffers: int,
    ) -> None:
        self._content = np.frombuffer(view, np.uint8)
        self._parts = parts
        self._device = device
        self._pool = pool
        self._coming: deque[Future[torch.Tensor]] = deque()
        for _ in range(buffers):
            self._fetch(pinned(_BUFFER_BYTES, device), lambda: None)

    def copy_to(self, target: "torch.Tensor") -> None:
        """The next part; `target` has it when the device has done what it was asked so far."""
        buffer = self._coming.popleft().result()
        target.copy_(buffer[: target.numel()], non_blocking=True)
        self._fetch(buffer, when_done(self._device))

    def skip(self) -> None:
        self._fetch(self._coming.popleft().result(), lambda: None)

    def _fetch(self, buffer: "torch.Tensor", is_free: Callable[[], None]) -> None:
        part = next(self._parts, None)
        if part is not None:
            self._coming.append(self._pool.submit(self._read, *part, buffer, is_free))

    def _read(self, start: int, end: int, buffer: "torch.Tensor", is_free: Callable[[], None]) -> Any:
        is_free()
        np.copyto(buffer.numpy()[: end - start], self._content[start:end])
        return buffer
