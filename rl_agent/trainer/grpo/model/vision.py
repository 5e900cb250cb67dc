"""Reads images as a vision model of Qwen's kinds does: patches for its tower, and positions for its layers.

An image of h x w patches takes h w / m^2 tokens (m: patches that are merged along each side). Its tokens have
a position of three parts (M-RoPE; Wang et al., arXiv:2409.12191): time, row and column; text after it goes
on behind the largest. transformers' own processor and `get_rope_index` compute both, a sequence at a time.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.images import ImagePatches, PlacedImage

KEPT_IMAGES = 64
"""Images of which patches are kept: 20 MB for one of 1000 x 800 pixels."""


class ImageReader:
    """Reads the images of a model's sequences."""

    def __init__(self, processor: Any, model: Any) -> None:
        """`processor` is transformers' for the images of this model."""
        self._processor = processor
        self.image_token = int(model.config.image_token_id)
        self._get_rope_index = model.model.get_rope_index
        self._merged = int(model.config.vision_config.spatial_merge_size) ** 2
        self._read = lru_cache(maxsize=KEPT_IMAGES)(self._read_file)

    @classmethod
    def load(cls, folder: Path, model: Any) -> "ImageReader":
        """Take the processor of the model's folder, which engines have, too. Raises ConfigError."""
        from transformers import AutoImageProcessor

        try:
            return cls(AutoImageProcessor.from_pretrained(folder), model)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder}: its image processor cannot be read: {error}") from error
        except ImportError as error:
            raise ConfigError("images need torchvision, which is not installed") from error

    def patches(self, image: PlacedImage) -> ImagePatches:
        """Return the patches of an image. Raises ConfigError if the engine saw other ones."""
        patches = self._read(image.path)
        tokens = int(patches.grid.prod()) // self._merged
        if tokens != image.tokens:
            raise ConfigError(
                f"{image.path}: the engine made {image.tokens} tokens of it and the trainer's processor makes"
                f" {tokens}; leave engine.extra_args.mm-processor-kwargs to the model's folder"
            )
        return patches

    def positions(self, token_ids: NDArray[np.int32], images: Sequence[PlacedImage]) -> NDArray[np.int64]:
        """Return the positions of the tokens of a whole sequence: [3, tokens]."""
        if not images:
            return np.broadcast_to(np.arange(len(token_ids)), (3, len(token_ids)))
        tokens = torch.as_tensor(token_ids, dtype=torch.long)[None]
        grids = torch.stack([self.patches(image).grid for image in images])
        is_image = (tokens == self.image_token).int()
        positions, _ = self._get_rope_index(tokens, mm_token_type_ids=is_image, image_grid_thw=grids)
        numbers: NDArray[np.int64] = positions[:, 0].numpy()
        return numbers

    def _read_file(self, path: str) -> ImagePatches:
        from PIL import Image

        with Image.open(path) as image:
            made = self._processor(image.convert("RGB"), return_tensors="pt")
        return ImagePatches(made["pixel_values"], made["image_grid_thw"][0])
