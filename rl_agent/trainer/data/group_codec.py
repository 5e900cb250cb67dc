"""Groups as bytes, for checkpoints and between ranks: flat arrays, and JSON that says how to cut them."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from rl_agent.trainer.data.admission import Versions
from rl_agent.trainer.data.samples import Group, Sample, Segment


def encode(groups: Sequence[Group]) -> bytes:
    """Write groups as a safetensors file with the tokens of all segments end to end."""
    segments = [segment for group in groups for sample in group.samples for segment in sample.segments]
    index = json.dumps([_describe(group) for group in groups]).encode()
    return save(
        {
            "index": np.frombuffer(index, np.uint8),
            "token_ids": _joined([s.token_ids for s in segments], np.int32),
            "is_response": _joined([s.is_response for s in segments], np.bool_),
            "behaviour": _joined([s.behaviour for s in segments], np.float32),
        }
    )


def decode(content: bytes) -> list[Group]:
    """Read the groups that `encode` was given."""
    arrays = load(content)
    next_segment = _SegmentReader(arrays)
    return [
        Group(
            group["key"],
            tuple(
                Sample(
                    sample["key"],
                    tuple(next_segment.take(length) for length in sample["lengths"]),
                    sample["reward"],
                    Versions(*sample["versions"]),
                    longest_response=sample.get("longest_response", 0),  # checkpoints of earlier releases
                    is_cut=sample.get("is_cut", False),
                )
                for sample in group["samples"]
            ),
            flaw=group.get("flaw", ""),
        )
        for group in json.loads(arrays["index"].tobytes())
    ]


def _describe(group: Group) -> dict[str, Any]:
    samples = [
        {
            "key": sample.key,
            "reward": sample.reward,
            "versions": [sample.versions.oldest, sample.versions.newest],
            "longest_response": sample.longest_response,
            "is_cut": sample.is_cut,
            "lengths": [len(segment) for segment in sample.segments],
        }
        for sample in group.samples
    ]
    return {"key": group.key, "samples": samples, "flaw": group.flaw}


class _SegmentReader:
    """Takes one segment after the other off the joined arrays."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays
        self._start = 0

    def take(self, length: int) -> Segment:
        part = slice(self._start, self._start + length)
        self._start += length
        arrays = self._arrays
        return Segment(arrays["token_ids"][part], arrays["is_response"][part], arrays["behaviour"][part])


def _joined(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)
