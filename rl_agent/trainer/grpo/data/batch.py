"""Packs a micro-batch into tensors: sequences end to end, without a padding token between them.

Where sequences share prefixes, a sequence has only its own tokens there, those that no sequence before it
has; attention gets the keys of all of them. A model whose layers meet other tokens in attention alone
computes the same numbers either way.

Hidden state t predicts token t + 1, so a response token at index i is scored from the hidden state at
`positions`, the place of token i − 1; only those hidden states ever meet the vocabulary. What belongs to
response tokens is flat, one element a token, in the order of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_agent.trainer.grpo.data.images import PlacedImage, ReadsImages, identities
from rl_agent.trainer.grpo.data.prefixes import chain_apart, chain_of, shared_tokens
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
    images: tuple[PlacedImage, ...] = ()
    """The images of the segment."""

    @property
    def identities(self) -> NDArray[np.int32]:
        """Return numbers that two rows have in common as far as a model sees the same in both."""
        return identities(self.segment.token_ids, self.images)


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """`input_ids` has one row; the fields after `max_length` are per response token."""

    input_ids: Tensor
    position_ids: Tensor
    """[1, tokens], or [3, 1, tokens] where there are images."""
    images: tuple[tuple[PlacedImage, ...], ...]
    """The images among each sequence's own tokens."""
    boundaries: Tensor
    """Start of each sequence's own tokens, and the total: int32, one more element than sequences."""
    key_places: Tensor | None
    """The places of all tokens of each sequence, end to end; None: no prefix is shared."""
    key_boundaries: Tensor
    """Start of each sequence in `key_places`; equal to `boundaries` where no prefix is shared."""
    max_length: int
    sequences: int
    positions: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    response_tokens: Tensor
    sample: Tensor
    sequence: Tensor
    """The number of its sequence in this batch, from 0."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The place of each token of some sequences, in the order in which they lie in the batch."""

    order: list[int]
    shared: list[int]
    """Tokens of each sequence, in that order, that lie where those of the one before it do."""
    paths: list[np.ndarray]
    """The places of each sequence's tokens, in that order."""

    @classmethod
    def of(cls, token_ids: Sequence[np.ndarray], *, shares: bool) -> "_Layout":
        chain = chain_of(token_ids) if shares else chain_apart(len(token_ids))
        shared = [shared_tokens(len(token_ids[index]), common) for index, common in chain]
        paths: list[np.ndarray] = []
        end = 0
        for (index, _), tokens in zip(chain, shared, strict=True):
            own = len(token_ids[index]) - tokens
            path = np.arange(end, end + own)
            paths.append(np.concatenate([paths[-1][:tokens], path]) if tokens else path)
            end += own
        return cls([index for index, _ in chain], shared, paths)


def pack(
    rows: Sequence[Row], device: torch.device, *, shares: bool = False, reader: ReadsImages | None = None
) -> PackedBatch:
    """Pack these rows into one sequence; without rows, one token that nothing is learnt from.

    A rank with nothing to compute still takes part in every collective of the model. `shares`: prefixes that
    rows have in common are there once. `reader` reads the images of rows.
    """
    token_ids = [row.segment.token_ids for row in rows] or [np.zeros(1, np.int32)]
    layout = _Layout.of([row.identities for row in rows] or token_ids, shares=shares)
    ordered = [token_ids[index] for index in layout.order]
    key_boundaries = np.cumsum([0, *map(len, ordered)])
    boundaries = key_boundaries - np.cumsum([0, *layout.shared])
    path_of = dict(zip(layout.order, layout.paths, strict=True))
    chosen = [np.flatnonzero(row.segment.is_response) for row in rows]
    counts = [len(indices) for indices in chosen]

    def flat(arrays: list[np.ndarray], dtype: torch.dtype) -> Tensor:
        array = np.concatenate(arrays) if arrays else np.zeros(0)
        return torch.as_tensor(array).to(device=device, dtype=dtype, non_blocking=True)

    def spread(values: list[float]) -> Tensor:
        return flat([np.repeat(values, counts)] if rows else [], torch.float32)

    pairs = list(zip(rows, chosen, strict=True))
    starts = list(zip(ordered, layout.shared, strict=True))
    images = [rows[index].images for index in layout.order] if rows else [()]
    return PackedBatch(
        input_ids=flat([tokens[start:] for tokens, start in starts], torch.long)[None],
        position_ids=_positions(starts, images, reader).to(device, non_blocking=True),
        images=tuple(
            tuple(image for image in shown if image.start >= start)
            for shown, (_, start) in zip(images, starts, strict=True)
        ),
        boundaries=flat([boundaries], torch.int32),
        key_places=flat(layout.paths, torch.long) if any(layout.shared) else None,
        key_boundaries=flat([key_boundaries], torch.int32),
        max_length=max(map(len, token_ids)),
        sequences=len(token_ids),
        positions=flat([path_of[i][indices - 1] for i, indices in enumerate(chosen)], torch.long),
        targets=flat([row.segment.token_ids[indices] for row, indices in pairs], torch.long),
        behaviour=flat([row.segment.behaviour[indices] for row, indices in pairs], torch.float32),
        advantages=spread([row.advantage for row in rows]),
        response_tokens=spread([row.response_tokens for row in rows]),
        sample=spread([row.sample for row in rows]).long(),
        sequence=spread(list(range(len(rows)))).long(),
    )


def _positions(
    starts: Sequence[tuple[NDArray[np.int32], int]],
    images: Sequence[Sequence[PlacedImage]],
    reader: ReadsImages | None,
) -> Tensor:
    """Compute the positions of the tokens of each sequence from its start on."""
    if reader is None or not any(images):
        return torch.as_tensor(np.concatenate([np.arange(start, len(tokens)) for tokens, start in starts]))[
            None
        ]
    reader.read_ahead(image.path for shown in images for image in shown)
    parts = [
        reader.positions(len(tokens), shown)[:, start:]
        for (tokens, start), shown in zip(starts, images, strict=True)
    ]
    return torch.as_tensor(np.concatenate(parts, axis=1))[:, None]
