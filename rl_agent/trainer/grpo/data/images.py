"""Finds the images of a sequence among its tokens: pure functions of arrays and file names.

A model sees an image as a run of placeholders, all of them one token. What lies there in truth is the image,
so two sequences have a prefix in common only as far as their images are the same: `identities` says which.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_agent.trainer.grpo.data.samples import Segment


class PlacedImage(NamedTuple):
    """An image, and the tokens that stand for it."""

    path: str
    start: int
    tokens: int


class ReadsImages(Protocol):
    """Reads images as a vision model does (`model.vision`)."""

    image_token: int
    """The token that stands for a piece of an image."""

    def read_ahead(self, paths: Iterable[str]) -> None:
        """Begin to read the images that will be asked for."""
        ...

    def forget(self) -> None:
        """Forget what was kept for other batches of the same step."""
        ...

    def positions(self, tokens: int, images: Sequence[PlacedImage]) -> NDArray[np.int64]:
        """Return the positions of the tokens of a whole sequence: [3, tokens]. Raises ConfigError."""
        ...

    def tower_work(self) -> int:
        """Count the weights that a trained tower applies for a token; a frozen one sees an image once."""
        ...


def placed_images(segment: Segment, image_token: int | None) -> list[PlacedImage] | None:
    """List the images in the order of their placeholders; None if these are not as many.

    So it is where a model has written a placeholder itself, and where it is a text model.
    """
    if image_token is None:
        return None if segment.images else []
    is_placeholder = np.concatenate([[False], segment.token_ids == image_token, [False]])
    edges = np.flatnonzero(is_placeholder[1:] != is_placeholder[:-1])
    starts, ends = edges[::2].tolist(), edges[1::2].tolist()
    if len(starts) != len(segment.images):
        return None
    return [
        PlacedImage(path, start, end - start)
        for path, start, end in zip(segment.images, starts, ends, strict=True)
    ]


def positions_of(
    tokens: int, images: Sequence[PlacedImage], sizes: Sequence[tuple[int, int]]
) -> NDArray[np.int64]:
    """Return time, row and column of a sequence's tokens (M-RoPE, arXiv:2409.12191, 2.1): [3, tokens].

    `sizes` has the rows and columns of each image's tokens. transformers' `get_rope_index` says the same of
    images, and takes 20 ms for 5,000 tokens.
    """
    positions = np.empty((3, tokens), np.int64)
    end = after = 0
    for image, (rows, columns) in zip(images, sizes, strict=True):
        start, stop = image.start, image.start + image.tokens
        before = after + start - end
        positions[:, end:start] = np.arange(after, before)
        positions[0, start:stop] = before
        positions[1, start:stop] = before + np.arange(rows).repeat(columns)
        positions[2, start:stop] = before + np.tile(np.arange(columns), rows)
        end, after = stop, before + max(rows, columns)
    positions[:, end:] = np.arange(after, after + tokens - end)
    return positions


def identities(token_ids: NDArray[np.int32], images: Sequence[PlacedImage]) -> NDArray[np.int32]:
    """Return the token ids, with numbers below 0 that name the image in place of its placeholders."""
    if not images:
        return token_ids
    named = token_ids.copy()
    for image in images:
        digest = hashlib.sha256(Path(image.path).name.encode()).digest()  # a file is named by its content
        numbers = np.frombuffer(digest, np.int32) | np.int32(-(2**31))
        named[image.start : image.start + image.tokens] = np.resize(numbers, image.tokens)
    return named
