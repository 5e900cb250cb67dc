"""Counts the tokens of a prompt with images before it is sent, as the model's own processor would make them.

Qwen's processors (Qwen2-VL, 2.5 and 3) resize an image so that both sides are multiples of
`patch_size * merge_size` pixels and the area is within two limits, then make one token of each such square
(`smart_resize` in transformers' image_processing_qwen2_vl.py; vLLM's models/qwen2_vl.py counts alike). What
another processor makes is learned: an engine says which tokens it made of a prompt, and images of one size
have equally many.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rl_agent.system.files import read_object

Size = tuple[int, int]
"""Width and height in pixels."""

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_QWEN = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
_STEEPEST = 200
_DEFAULT_MIN, _DEFAULT_MAX = 56 * 56, 28 * 28 * 1280
"""Defaults of transformers, for a configuration that names none."""


class ImageTokens:
    """The number of tokens that the served model makes of an image of some size."""

    def __init__(self, settings: Mapping[str, Any] | None = None, image_token: int | None = None) -> None:
        """`settings` are those of the image processor; `image_token` stands for a piece of an image."""
        self.image_token = image_token
        self._settings = settings if settings and settings.get("image_processor_type") in _QWEN else None
        self._learned: dict[Size, int] = {}

    @classmethod
    def load(cls, folder: Path) -> "ImageTokens":
        """Read the processor's settings in a model folder; without any, everything has to be learned."""
        config = read_object(folder / "config.json")
        image_token = config.get("image_token_id", config.get("image_token_index"))
        settings = read_object(folder / PROCESSOR_FILES[0])
        if "image_processor_type" not in settings:  # since transformers 5 in one file with the others
            settings = read_object(folder / PROCESSOR_FILES[1]).get("image_processor") or settings
        return cls(settings, image_token if isinstance(image_token, int) else None)

    def of(self, size: Size) -> int | None:
        """Return the number of tokens; None where nobody knows it yet."""
        if size in self._learned:
            return self._learned[size]
        return qwen_tokens(size, self._settings) if self._settings is not None else None

    def total(self, sizes: Sequence[Size]) -> int | None:
        """Return the tokens of all these images; None if one is not known."""
        counts = [self.of(size) for size in sizes]
        return None if None in counts else sum(count for count in counts if count is not None)

    def learn(self, sizes: Sequence[Size], prompt: Sequence[int]) -> None:
        """Take from an engine's answer what it made of images of these sizes, in order."""
        if self.image_token is None:
            return
        runs = [len(list(run)) for token, run in groupby(prompt) if token == self.image_token]
        if len(runs) == len(sizes):
            self._learned.update(zip(sizes, runs, strict=True))


def qwen_tokens(size: Size, settings: Mapping[str, Any]) -> int | None:
    """Return what Qwen's processors make of an image; None for one that they refuse."""
    width, height = size
    if min(size) < 1 or max(size) > _STEEPEST * min(size):
        return None
    factor: int = settings.get("patch_size", 14) * settings.get("merge_size", 2)
    if not settings.get("do_resize", True):
        return (height // factor) * (width // factor)
    bounds = settings.get("size") or {}
    least = settings.get("min_pixels") or bounds.get("shortest_edge") or _DEFAULT_MIN
    most = settings.get("max_pixels") or bounds.get("longest_edge") or _DEFAULT_MAX
    down, across = round(height / factor) * factor, round(width / factor) * factor
    if down * across > most:
        shrink = math.sqrt(height * width / most)
        down = max(factor, math.floor(height / shrink / factor) * factor)
        across = max(factor, math.floor(width / shrink / factor) * factor)
    elif down * across < least:
        grow = math.sqrt(least / (height * width))
        down = math.ceil(height * grow / factor) * factor
        across = math.ceil(width * grow / factor) * factor
    return (down // factor) * (across // factor)
