"""Writes a source's tensors to their places in a version's file; those of a GPU via pinned memory."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.format import pinned
from rl_agent.weights.format.dtypes import dtype_name, kind_of, torch_dtype
from rl_agent.weights.format.finite import largest_magnitude
from rl_agent.weights.format.manifest import ALIGNMENT, Layout, TensorEntry
from rl_agent.weights.format.pinned import Bytes, PinnedRing, parts
from rl_agent.weights.store.mapped_file import DraftFile
from rl_agent.weights.store.tensor_sources import TensorSource, tensor_bytes, tensor_in

if TYPE_CHECKING:
    import torch


def fill(
    file: DraftFile, layout: Layout, source: TensorSource, *, threads: int, check_finite: bool
) -> "torch.device | None":
    """Write every tensor to its place, and zeros between them: the file may have held another version.

    Returns the GPU that they were on, None if they were on none. Raises WeightsError if the source gives
    other tensors than it said, there is no room, or with `check_finite` a value is NaN or infinite as it is
    served.
    """
    starts = [entry.start for entry in layout.tensors[1:]] + [layout.size_bytes]
    for entry, start in zip(layout.tensors, starts, strict=True):
        file.write(entry.end, bytes(start - entry.end))
    places = {entry.name: entry for entry in layout.tensors}
    waiting = set(places)
    writer: RingWriter | None = None
    magnitudes: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        for name, tensor in source.tensors():
            if name not in waiting or tuple(tensor.shape) != places[name].shape:
                raise WeightsError(f"{name}: came twice, or in another shape than announced")
            if kind_of(dtype_name(tensor)) != kind_of(places[name].dtype):
                raise WeightsError(
                    f"{name}: came as {tensor.dtype}, but was announced as {places[name].dtype}"
                )
            waiting.remove(name)
            content = tensor.to(torch_dtype(places[name].dtype))
            if check_finite:
                magnitudes[name] = largest_magnitude(content)
            if tensor.device.type != "cuda":
                _write(file, places[name], content)
                continue
            if writer is None:
                ring = stack.enter_context(PinnedRing(tensor.device, threads=threads))
                writer = RingWriter(ring, file)
            writer.write(places[name], content)
        if writer is not None:
            writer.flush()
    if waiting:
        raise WeightsError(f"{min(waiting)}: is missing")
    _check_finite(magnitudes)
    return None if writer is None else writer.device


def _check_finite(magnitudes: "Mapping[str, torch.Tensor]") -> None:
    """Raise WeightsError for the first tensor whose largest magnitude is not finite; waits once for all."""
    import torch

    if not magnitudes:
        return
    device = next(iter(magnitudes.values())).device
    largest = torch.stack([magnitude.to(device) for magnitude in magnitudes.values()]).tolist()
    for name, magnitude in zip(magnitudes, largest, strict=True):
        if not math.isfinite(magnitude):
            raise WeightsError(
                f"{name}: holds NaN or infinity; the version is not published. Lower trainer.learning_rate,"
                " or set weights.check_finite=false to publish it as it is"
            )


class RingWriter:
    """Writes a GPU's tensors to a file by way of a ring, those that follow each other there together.

    To hand a buffer over costs as much as to copy a megabyte, and most tensors of a small model are smaller.
    """

    def __init__(self, ring: PinnedRing, file: DraftFile) -> None:
        self.device = ring.device
        self._ring = ring
        self._file = file
        self._buffer: torch.Tensor | None = None
        self._start = self._end = 0
        """The bytes of the file that the buffer holds."""

    def write(self, entry: TensorEntry, tensor: "torch.Tensor") -> None:
        """Write a tensor of the type that its entry names; a later operation of its stream may change it.

        Raises WeightsError if there is no room in the file, maybe later: at the latest where the ring ends.
        """
        import torch

        content = tensor.contiguous().reshape(-1).view(torch.uint8)
        for start, end in parts(entry.start, entry.end):
            follows = self._end <= start < self._end + ALIGNMENT
            if not follows or end - self._start > pinned.BUFFER_BYTES:
                self.flush()
            if self._buffer is None:
                self._buffer, self._start, self._end = self._ring.take(), start, start
            place = self._buffer[: end - self._start]
            place[self._end - self._start : start - self._start].zero_()
            place[start - self._start :].copy_(
                content[start - entry.start : end - entry.start], non_blocking=True
            )
            self._end = end

    def flush(self) -> None:
        """Hand over what was not handed over yet."""
        if self._buffer is not None:
            self._ring.hand_over(self._buffer, partial(_write_part, self._file, self._start, self._end))
            self._buffer = None


def _write(file: DraftFile, entry: TensorEntry, tensor: "torch.Tensor") -> None:
    place = file.place(entry.start, entry.end)
    if place is None:
        file.write(entry.start, tensor_bytes(tensor))
    else:
        tensor_in(place, entry).copy_(tensor)


def _write_part(file: DraftFile, start: int, end: int, memory: Bytes) -> None:
    place = file.place(start, end)
    if place is None:
        file.write(start, memory[: end - start].data)
    else:
        np.copyto(np.frombuffer(place, np.uint8), memory[: end - start])
