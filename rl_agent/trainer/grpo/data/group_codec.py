"""Encodes groups as bytes, for checkpoints and between ranks: flat arrays, and JSON that says how to cut."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions

_ARRAYS = {"token_ids": np.int32, "is_response": np.bool_, "behaviour": np.float32}
"""The arrays of a segment, in the order of its fields."""


def encode(groups: Sequence[Group]) -> bytes:
    """Write groups as a safetensors file with the tokens of all segments end to end."""
    segments = [segment for group in groups for sample in group.samples for segment in sample.segments]
    index = json.dumps([_describe(group) for group in groups]).encode()
    return save(
        {
            "index": np.frombuffer(index, np.uint8),
            **{
                name: _joined([getattr(segment, name) for segment in segments], dtype)
                for name, dtype in _ARRAYS.items()
            },
        }
    )


def decode(content: bytes) -> list[Group]:
    """Read the groups that `encode` was given."""
    arrays = load(content)
    index = json.loads(arrays["index"].tobytes())
    lengths = [length for group in index for sample in group["samples"] for length in sample["lengths"]]
    parts = (np.split(arrays[name], np.cumsum(lengths, dtype=int)[:-1]) for name in _ARRAYS)
    segments = map(Segment, *parts)

    def sample_of(described: dict[str, Any]) -> TrainingSample:
        lengths = described.pop("lengths")
        images = described.pop("images", None) or [()] * len(lengths)
        own = tuple(replace(next(segments), images=tuple(of_segment)) for of_segment in images)
        versions = Versions(*described.pop("versions"))
        return TrainingSample(
            segments=own, versions=versions, **described
        )  # earlier releases lack some fields

    return [
        Group(group["key"], tuple(map(sample_of, group["samples"])), flaw=group.get("flaw", ""))
        for group in index
    ]


def _describe(group: Group) -> dict[str, Any]:
    samples = [
        {
            "key": sample.key,
            "reward": sample.reward,
            "versions": [sample.versions.oldest, sample.versions.newest],
            "rewards": dict(sample.rewards),
            "longest_response": sample.longest_response,
            "is_cut": sample.is_cut,
            "lengths": [len(segment) for segment in sample.segments],
            "images": [segment.images for segment in sample.segments],
        }
        for sample in group.samples
    ]
    return {"key": group.key, "samples": samples, "flaw": group.flaw}


def _joined(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)
