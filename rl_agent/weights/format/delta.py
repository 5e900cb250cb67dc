"""Encodes a version as the differences of its blocks from an earlier version of the same layout.

    "RLWD"  format  block bytes  blocks        4 + 3 x 4 bytes
    length of each block's payload             4 bytes each
    payloads                                   codec.py says what is in one

Blocks are the full blob cut at every `block bytes` and wherever the width of the values changes, so both
sides know them from the manifest. Blocks are coded apart, on threads.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.format import codec, codec_torch
from rl_agent.weights.format.dtypes import WIDTH_OF
from rl_agent.weights.format.manifest import TensorEntry, runs_of

if TYPE_CHECKING:
    import torch

DELTA_FORMAT = 1
_MAGIC = b"RLWD"
_HEAD = struct.Struct("<4sIII")

_DEVICE_BLOCK_BYTES = 2**24
"""Smaller ones cost a GPU mostly calls; larger ones a receiver its processor's cache."""

Block = tuple[int, int, int]
"""Start, end and width of the values."""


def blocks_of(tensors: Iterable[TensorEntry], block_bytes: int) -> list[Block]:
    """Cut the full blob of these tensors into blocks."""
    return [
        (start, min(start + block_bytes, run_end), width)
        for width, run_start, run_end in _width_runs(tensors)
        for start in range(run_start, run_end, block_bytes)
    ]


def encode_delta(
    base: memoryview,
    new: memoryview,
    tensors: Iterable[TensorEntry],
    *,
    block_bytes: int,
    threads: int,
    limit_bytes: int,
    device: "torch.device | None" = None,
) -> bytes | None:
    """Encode the delta of two full blobs with the same layout; None once it is sure to exceed `limit_bytes`.

    A GPU as `device` finds the changes of one block, of at least 16 MiB, while threads compress those of the
    ones before. Raises torch.OutOfMemoryError if it has no room for a block.
    """
    encode_block: Callable[[memoryview, memoryview, int], bytes] = codec.encode
    if device is not None:
        block_bytes = max(block_bytes, _DEVICE_BLOCK_BYTES)
        encode_block = codec_torch.DeviceCodec(device, block_bytes).encode

    def encode(block: Block) -> bytes:
        start, end, width = block
        return encode_block(base[start:end], new[start:end], width)

    blocks = blocks_of(tensors, block_bytes)
    payloads: list[bytes] = []
    total = _HEAD.size + 4 * len(blocks)
    with ThreadPoolExecutor(threads, "encode") as pool:
        for payload in _in_order(pool, encode, blocks, ahead=2 * threads):
            payloads.append(payload)
            total += len(payload)
            if total > limit_bytes:
                return None
    head = _HEAD.pack(_MAGIC, DELTA_FORMAT, block_bytes, len(blocks))
    return b"".join((head, np.array([len(p) for p in payloads], "<u4").tobytes(), *payloads))


def decode_delta(
    blob: memoryview,
    base: memoryview,
    write: Callable[[int, memoryview], None],
    tensors: Iterable[TensorEntry],
    *,
    threads: int,
) -> None:
    """Decode the full blob that `blob` and `base` stand for; `write` is given each part and its start.

    `write` is called by several threads. It may write over `base`. The result is still to be verified.

    Raises WeightsError if the blob is not a delta of this layout.
    """
    if len(blob) < _HEAD.size:
        raise WeightsError("delta: is cut short")
    magic, version, block_bytes, count = _HEAD.unpack(blob[: _HEAD.size])
    if magic != _MAGIC or version != DELTA_FORMAT or not 64 <= block_bytes <= codec.MAX_BLOCK_BYTES:
        raise WeightsError("delta: is not in a format that is known here")
    tensors = list(tensors)
    first = _HEAD.size + 4 * count
    expected = sum(-(-(end - start) // block_bytes) for _, start, end in _width_runs(tensors))  # maybe many
    if count != expected or len(blob) < first or block_bytes % 64:
        raise WeightsError("delta: was made for another layout")
    blocks = blocks_of(tensors, block_bytes)
    longest = max((end - start for start, end, _ in blocks), default=0)
    lengths = np.frombuffer(blob[_HEAD.size : first], "<u4").tolist()
    ends = list(accumulate(lengths, initial=first))
    if ends[-1] != len(blob):
        raise WeightsError("delta: has another length than its blocks together")

    scratch = threading.local()  # memory that is touched already, one block a thread

    def decode(index: int) -> None:
        start, end, width = blocks[index]
        if not hasattr(scratch, "block"):
            scratch.block = memoryview(bytearray(longest))
        target = scratch.block[: end - start]
        codec.decode(base[start:end], blob[ends[index] : ends[index + 1]], target, width)
        write(start, target)

    with ThreadPoolExecutor(threads, "decode") as pool:
        for _ in pool.map(decode, range(count)):
            pass


def _width_runs(tensors: Iterable[TensorEntry]) -> Iterator[tuple[int, int, int]]:
    return runs_of(tensors, lambda tensor: WIDTH_OF[tensor.dtype])


def _in_order(
    pool: ThreadPoolExecutor, encode: Callable[[Block], bytes], blocks: list[Block], *, ahead: int
) -> Iterator[bytes]:
    """Map like `pool.map`, but at most `ahead` blocks ahead, so that stopping early saves the work."""
    waiting: list[Future[bytes]] = []
    for block in blocks:
        waiting.append(pool.submit(encode, block))
        if len(waiting) > ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()
