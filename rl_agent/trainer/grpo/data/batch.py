"""Packs a micro-batch into tensors: sequences end to end, without a padding token between them.

Hidden state t predicts token t + 1, so a response token at index i is scored from the hidden state at
`positions` = i − 1; only those hidden states ever meet the vocabulary. What belongs to response tokens is
flat, one element a token, in the order of the sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_agent.trainer.grpo.data.samples import Segment


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A segment, and what of its episode and group it has to carry."""

    segment: Segment
    advantage: float
    response_tokens: int
    """The response tokens of its whole episode."""
    sample: int
    """Numbers its episode among those the caller works on."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """`input_ids` and `position_ids` have one row; the fields after `max_length` are per response token."""

    input_ids: Tensor
    position_ids: Tensor
    boundaries: Tensor
    """Start of each sequence, and the total: int32, one more element than sequences."""
    max_length: int
    positions: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    response_tokens: Tensor
    sample: Tensor
    sequence: Tensor
    """The number of its sequence in this batch, from 0."""

    @property
    def total_tokens(self) -> int:
        return self.input_ids.shape[1]


def pack(rows: Sequence[Row], device: torch.device) -> PackedBatch:
    """Pack these rows into one sequence; without rows, one token that nothing is learnt from.

    A rank with nothing to compute still takes part in every collective of the model.
    """
    lengths = [len(row.segment) for row in rows] or [1]
    boundaries = np.concatenate([[0], np.cumsum(lengths)])
    chosen = [np.flatnonzero(row.segment.is_response) for row in rows]
    counts = [len(indices) for indices in chosen]

    def flat(arrays: list[np.ndarray], dtype: torch.dtype) -> Tensor:
        array = np.concatenate(arrays) if arrays else np.zeros(0)
        return torch.as_tensor(array).to(device=device, dtype=dtype, non_blocking=True)

    def spread(values: list[float]) -> Tensor:
        return flat([np.repeat(values, counts)] if rows else [], torch.float32)

    pairs = list(zip(rows, chosen, boundaries, strict=False))
    token_ids = [row.segment.token_ids for row in rows] or [np.zeros(1, np.int32)]
    return PackedBatch(
        input_ids=flat(token_ids, torch.long)[None],
        position_ids=flat([np.arange(length) for length in lengths], torch.long)[None],
        boundaries=flat([boundaries], torch.int32),
        max_length=max(lengths),
        positions=flat([start + indices - 1 for _, indices, start in pairs], torch.long),
        targets=flat([row.segment.token_ids[indices] for row, indices, _ in pairs], torch.long),
        behaviour=flat([row.segment.behaviour[indices] for row, indices, _ in pairs], torch.float32),
        advantages=spread([row.advantage for row in rows]),
        response_tokens=spread([row.response_tokens for row in rows]),
        sample=spread([row.sample for row in rows]).long(),
        sequence=spread(list(range(len(rows)))).long(),
    )
