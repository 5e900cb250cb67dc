"""Writes a source's tensors to their places in a version's file; those of a GPU via pinned memory."""

import math
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.format.dtypes import dtype_name, kind_of, torch_dtype
from rl_agent.weights.format.finite import largest_magnitude
from rl_agent.weights.format.manifest import Layout, TensorEntry
from rl_agent.weights.format.pinned import Bytes, PinnedRing, joins, parts
from rl_agent.weights.store.mapped_file import DraftFile
from rl_agent.weights.store.tensor_sources import TensorSource, tensor_at, tensor_bytes, tensor_in

if TYPE_CHECKING:
    import torch

Magnitudes: TypeAlias = "list[tuple[list[TensorEntry], torch.Tensor]]"
"""The largest magnitude of what was written together."""


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
    magnitudes: Magnitudes = []
    with ExitStack() as stack:
        for name, tensor in source.tensors():
            if name not in waiting or tuple(tensor.shape) != places[name].shape:
                raise WeightsError(f"{name}: came twice, or in another shape than announced")
            if kind_of(dtype_name(tensor)) != kind_of(places[name].dtype):
                raise WeightsError(
                    f"{name}: came as {tensor.dtype}, but was announced as {places[name].dtype}"
                )
            waiting.remove(name)
            if tensor.device.type == "cuda":
                if writer is None:
                    ring = stack.enter_context(PinnedRing(tensor.device, threads=threads))
                    writer = RingWriter(ring, file, magnitudes)
                writer.write(places[name], tensor)
                continue
            content = tensor.to(torch_dtype(places[name].dtype))
            if check_finite:
                magnitudes.append(([places[name]], largest_magnitude(content)))
            _write(file, places[name], content)
        if writer is not None:
            writer.flush()
    if waiting:
        raise WeightsError(f"{min(waiting)}: is missing")
    if check_finite:
        _check_finite(magnitudes, file)
    return None if writer is None else writer.device


def _check_finite(magnitudes: Magnitudes, file: DraftFile) -> None:
    """Raise WeightsError for the first tensor whose largest magnitude is not finite; waits once for all."""
    import torch

    if not magnitudes:
        return
    device = magnitudes[0][1].device
    largest = torch.stack([magnitude.to(device) for _, magnitude in magnitudes]).tolist()
    for (entries, _), magnitude in zip(magnitudes, largest, strict=True):
        if not math.isfinite(magnitude):
            written = ((entry, tensor_at(file.map(), entry)) for entry in entries)
            name = next(entry.name for entry, tensor in written if not largest_magnitude(tensor).isfinite())
            raise WeightsError(
                f"{name}: holds NaN or infinity; the version is not published. Lower trainer.learning_rate,"
                " or set weights.check_finite=false to publish it as it is"
            )


class RingWriter:
    """Writes a GPU's tensors to a file by way of a ring, those that follow each other there together.

    To ask the device for something, or a thread, costs as much as to copy a megabyte, and most tensors of a
    small model are smaller.
    """

    def __init__(self, ring: PinnedRing, file: DraftFile, magnitudes: Magnitudes) -> None:
        """Add to `magnitudes` what was written together, and its largest."""
        self.device = ring.device
        self._ring = ring
        self._file = file
        self._magnitudes = magnitudes
        self._run: list[TensorEntry] = []
        self._tensors: list[torch.Tensor] = []

    def write(self, entry: TensorEntry, tensor: "torch.Tensor") -> None:
        """Write a tensor in the type of its entry; it stays as it is until `flush`.

        Raises WeightsError if there is no room in the file, maybe later: at the latest where the ring ends.
        """
        if self._run and not joins(self._run, entry):
            self.flush()
        self._run.append(entry)
        self._tensors.append(tensor)

    def flush(self) -> None:
        """Write what was not written yet."""
        import torch

        run, tensors = self._run, self._tensors
        if not run:
            return
        self._run, self._tensors = [], []
        first, last, dtype = run[0].start, run[-1].end, torch_dtype(run[0].dtype)
        if len(run) == 1:
            memory = tensors[0].to(dtype).contiguous().reshape(-1).view(torch.uint8)
        else:
            memory = torch.zeros(last - first, dtype=torch.uint8, device=tensors[0].device)
            places = [memory[entry.start - first : entry.end - first].view(dtype) for entry in run]
            torch._foreach_copy_(places, [tensor.reshape(-1) for tensor in tensors])
        self._magnitudes.append((run, largest_magnitude(memory.view(dtype))))
        for start, end in parts(first, last):
            buffer = self._ring.take()
            buffer[: end - start].copy_(memory[start - first : end - first], non_blocking=True)
            self._ring.hand_over(buffer, partial(_write_part, self._file, start, end))


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
