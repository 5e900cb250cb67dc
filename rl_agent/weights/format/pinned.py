"""Shares a few pinned buffers between a device and threads, in a ring.

    a device gives     device ─► buffer ─► a thread writes it to a file     `filling`
    a device is given  a thread reads a file into it ─► buffer ─► device    `uploading`

A device copies to and from other memory several times slower, and whoever asked for that waits for it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_agent.weights.format.manifest import ALIGNMENT, TensorEntry

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]

BUFFER_BYTES = 2**24
_PER_THREAD = 2


def pinned(size_bytes: int, device: "torch.device") -> "torch.Tensor":
    """Allocate memory that the device reads and writes at the speed of its link."""
    import torch

    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut the bytes from `start` to `end` into parts of one buffer each."""
    return ((at, min(at + BUFFER_BYTES, end)) for at in range(start, end, BUFFER_BYTES))


def joins(run: Sequence[TensorEntry], entry: TensorEntry) -> bool:
    """Return whether a tensor follows those of a run in the file, and has room in a buffer with them."""
    follows = run[-1].end <= entry.start < run[-1].end + ALIGNMENT
    return follows and run[-1].dtype == entry.dtype and entry.end - run[0].start <= BUFFER_BYTES


class PinnedRing:
    """A ring of pinned buffers for one caller; at the end of its context all work of its threads is done."""

    def __init__(self, device: "torch.device", *, threads: int) -> None:
        self.device = device
        self.buffers = _PER_THREAD * threads
        self._pool = ThreadPoolExecutor(threads, "pinned")
        self._busy: deque[Future[torch.Tensor]] = deque()
        for _ in range(self.buffers):  # here, where the device is the current one
            free: Future[torch.Tensor] = Future()
            free.set_result(pinned(BUFFER_BYTES, device))
            self._busy.append(free)

    def __enter__(self) -> "PinnedRing":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        while self._busy and kind is None:
            self.take()

    def take(self) -> "torch.Tensor":
        """Take the buffer that was handed over first, once its work is done. Raises what `work` raised."""
        return self._busy.popleft().result()

    def hand_over(self, buffer: "torch.Tensor", work: Callable[[Bytes], None]) -> None:
        """Let a thread do `work` on a buffer's bytes once the device has done what it was asked so far."""
        self._busy.append(self._pool.submit(_after, _when_done(self.device), work, buffer))


def _after(wait: Callable[[], None], work: Callable[[Bytes], None], buffer: "torch.Tensor") -> Any:
    wait()
    work(buffer.numpy())
    return buffer


def _when_done(device: "torch.device") -> Callable[[], None]:
    import torch

    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.synchronize
