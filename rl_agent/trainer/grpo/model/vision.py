"""Reads images as a vision model of Qwen's kinds does, and computes what its tower makes of them.

An image of h x w patches takes h w / m^2 tokens (m: patches that are merged along each side). Its tokens have
a position of three parts (M-RoPE; Wang et al., arXiv:2409.12191): time, row and column; text after it goes
on behind the largest (`images.positions_of`).

The model asks for the features of the images of a batch; the tower computes each image once for all
sequences that show it. Those of a frozen tower are kept until the step ends: other micro-batches, and other
passes over the same one, show the same images. Files are read by threads, those of a micro-batch at the same
time and those of the next one ahead: one of 1000 x 800 pixels takes 30 ms.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_agent.errors import ConfigError
from rl_agent.trainer.gpu_memory import FEATURES_GIB
from rl_agent.trainer.grpo.data.images import PlacedImage, positions_of

READERS = 8
"""Threads that read images."""
KEPT_IMAGES = 64
"""Images of which patches are kept: 5 MB for one of 1000 x 800 pixels."""
KEPT_SIZES = 2**16
"""Images of which the size is kept: two numbers each."""
KEPT_FEATURE_BYTES = FEATURES_GIB * 2**30
"""Memory of the device for the features that are kept. Images of 1000 x 800 pixels for Qwen3-VL-8B in bf16:
42, where a micro-batch of 16,384 tokens shows 21."""


class ImagePatches(NamedTuple):
    """An image as the model's tower reads it."""

    values: Tensor
    """Bytes of the resized image, [patches, colours * frames * rows * columns], uint8."""
    grid: Tensor
    """Frames, rows and columns of patches: three int64."""


class ImageReader:
    """Reads the images of a model's sequences; the model gets features from it, and is given images."""

    def __init__(self, processor: Any, model: Any) -> None:
        """`processor` is transformers' for the images of this model."""
        self._processor = processor
        self.image_token = int(model.config.image_token_id)
        self._tower = model.model.visual
        self._encode = model.model.get_image_features
        model.model.get_image_features = self._features
        model.model.register_forward_pre_hook(self._with_zero, with_kwargs=True)
        self._merged = int(model.config.vision_config.spatial_merge_size)
        threads = ThreadPoolExecutor(READERS, thread_name_prefix="read-image")
        self._reading = lru_cache(maxsize=KEPT_IMAGES)(lambda path: threads.submit(self._read_file, path))
        self._size = lru_cache(maxsize=KEPT_SIZES)(self._read_size)
        self._kept: dict[str, Tensor] = {}
        """Features by path, the oldest first: [levels, tokens, numbers]."""

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

    def read_ahead(self, paths: Iterable[str]) -> None:
        """Begin to read those whose features are not kept."""
        new = (path for path in dict.fromkeys(paths) if path not in self._kept)
        for path in islice(new, KEPT_IMAGES // 2):  # the others are of what is computed meanwhile
            self._reading(path)

    def forget(self) -> None:
        """Give the memory of features back."""
        self._kept.clear()

    def _patches(self, path: str) -> ImagePatches:
        return self._reading(path).result()

    def positions(self, tokens: int, images: Sequence[PlacedImage]) -> NDArray[np.int64]:
        """Return the positions of the tokens of a whole sequence: [3, tokens].

        Raises ConfigError if the engine saw other patches of an image.
        """
        return positions_of(tokens, images, [self._checked_size(image) for image in images])

    def _checked_size(self, image: PlacedImage) -> tuple[int, int]:
        rows, columns = self._size(image.path)
        if rows * columns != image.tokens:
            raise ConfigError(
                f"{image.path}: the engine made {image.tokens} tokens of it and the trainer's processor makes"
                f" {rows * columns}; leave engine.extra_args.mm-processor-kwargs to the model's folder"
            )
        return rows, columns

    def _read_size(self, path: str) -> tuple[int, int]:
        """Return the rows and columns of an image's tokens."""
        _, rows, columns = self._patches(path).grid.tolist()
        return rows // self._merged, columns // self._merged

    def tower_work(self) -> int:
        """Count the weights that the tower applies for a token, in each of its patches.

        0 if it is frozen: an image is computed once, forward alone, which is little beside all that show it.
        """
        weights = sum(parameter.numel() for parameter in self._tower.parameters())
        return self._merged**2 * weights if self._trained else 0

    def _with_zero(self, model: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Add 0 x the tower's trained weights to the embeddings of a pass without images.

        Ranks sum the gradients of the same weights, and in the same order, whichever of them see an image.
        """
        if inputs["pixel_values"] is None and (trained := self._trained):
            embedded = model.get_input_embeddings()(inputs["input_ids"])
            zero = sum(0 * parameter.sum() for parameter in trained)
            inputs |= {"input_ids": None, "inputs_embeds": embedded + zero}
        return args, inputs

    @property
    def _trained(self) -> list[nn.Parameter]:
        """Those of the tower; sharded ones are others each time that they are whole."""
        return [parameter for parameter in self._tower.parameters() if parameter.requires_grad]

    def _features(self, images: Sequence[PlacedImage], *_: Any, **__: Any) -> SimpleNamespace:
        """Return the features of images, as the model's own `get_image_features` does of patches."""
        device = next(self._tower.parameters()).device
        paths = dict.fromkeys(image.path for image in images)
        features = {path: self._kept[path] for path in paths if path in self._kept}
        if new := [path for path in paths if path not in features]:
            computed = dict(zip(new, self._computed(new, device), strict=True))
            features |= computed
            if not self._trained:
                self._keep(computed)
        pooled, *deeper = torch.cat([features[image.path] for image in images], dim=1)
        return SimpleNamespace(pooler_output=[pooled], deepstack_features=deeper)

    def _computed(self, paths: Sequence[str], device: torch.device) -> Sequence[Tensor]:
        """Let the tower compute images; gives what the first layer gets of each, and then deeper ones."""
        patches = [self._patches(path) for path in paths]
        values = torch.cat([each.values.to(device, non_blocking=True) for each in patches])
        grids = torch.stack([each.grid for each in patches]).to(device)
        output = self._encode(self._pixels(values), grids, return_dict=True)
        levels = [torch.cat(output.pooler_output), *(getattr(output, "deepstack_features", None) or ())]
        sizes = [len(part) for part in output.pooler_output]
        of_each: Sequence[Tensor] = torch.stack(levels).split(sizes, dim=1)
        return of_each

    def _pixels(self, values: Tensor) -> Tensor:
        """Scale and normalize each colour in fp32, with the rounding of the processor on torchvision."""
        processor = self._processor
        moments = torch.tensor([processor.image_mean, processor.image_std]) * (1 / processor.rescale_factor)
        mean, std = moments.repeat_interleave(values.shape[1] // moments.shape[1], 1).to(values.device)
        return values.float().sub_(mean).div_(std)

    def _keep(self, features: dict[str, Tensor]) -> None:
        self._kept |= {path: part.clone() for path, part in features.items()}  # not with all of its batch
        size = sum(part.nbytes for part in self._kept.values())
        while size > KEPT_FEATURE_BYTES:
            size -= self._kept.pop(next(iter(self._kept))).nbytes

    def _read_file(self, path: str) -> ImagePatches:
        from PIL import Image

        with Image.open(path) as image:
            patches = self._processor(
                image.convert("RGB"), do_rescale=False, do_normalize=False, return_tensors="pt"
            )
        return ImagePatches(_on_host(patches["pixel_values"]), patches["image_grid_thw"][0])


def _on_host(tensor: Tensor) -> Tensor:
    """Copy to memory that a GPU, if there is one, reads at the speed of its link."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available()).copy_(tensor)
