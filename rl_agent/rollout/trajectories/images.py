"""Images of observations, kept beside the trajectories that name them.

    an environment's file ─► decoded once, bounded ─► images/<episode>/step-<k>-<n>-<digest>.<suffix>

An environment may delete or overwrite a screenshot after its next step, and the engine reads files below the
log path only; so each image is copied before it is used. What engine and trainer would read in two ways
(transparency, a turned photo, other modes than RGB) is written as plain RGB pixels, as vLLM reads it. The
content's digest is a part of the name: a file that was changed later is not what was seen.
"""

import hashlib
import io
import stat
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_agent.errors import EnvironmentFailure, StoreError
from rl_agent.files import file_name, write_whole
from rl_agent.types import EpisodeKey, Observation, Split

MAX_PIXELS = 2**26
MAX_BYTES = 2**26
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}
"""What is kept as it is."""
_FORMATS = (*_SUFFIXES, "GIF", "BMP", "TIFF")
"""What is read at all: some of the formats that Pillow knows start programs."""
_ORIENTATION = 0x0112
_DIGEST_LENGTH = 16
_FOLDER = "images"


def keep_images(observation: Observation, place: Path, step: int) -> Observation:
    """Keep the images of an observation under `place`; returns it with their new paths.

    Raises EnvironmentFailure for one that cannot be read, StoreError if there is no place for it.
    """
    kept = []
    for number, image in enumerate(observation.images):
        try:
            content, suffix = _read(Path(image))
        except Exception as error:  # Pillow raises anything for a damaged file
            why = str(getattr(error, "strerror", None) or error or type(error).__name__)
            raise EnvironmentFailure(f"its image {image} cannot be kept: {why}") from error
        target = place / f"step-{step:03d}-{number}-{_digest(content)}{suffix}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            write_whole(target, content, is_durable=False)
        except OSError as error:
            raise StoreError(f"{target}: {error.strerror}") from error
        kept.append(str(target))
    return replace(observation, images=tuple(kept))


def image_place(images: Path, split: Split, iteration: int, key: EpisodeKey) -> Path:
    """Return the folder of an episode's images, and of no other's."""
    return images / f"{split}-iteration{iteration}" / f"{file_name(key.task_id)}-{key.group}-{key.attempt}"


def recorded_image(path: str, images: Path) -> Path | None:
    """Find a recorded image, also if the log path was moved; None if it is gone or was changed."""
    parts = Path(path).parts
    moved = [parts[at + 1 :] for at, part in enumerate(parts) if part == _FOLDER]
    for found in (Path(path), *(images.joinpath(*tail) for tail in moved)):
        try:
            if is_as_seen(found):
                return found
        except (OSError, ValueError):
            continue
    return None


def is_as_seen(path: Path) -> bool:
    """Return whether a file has the content that its name says; yes where the name says nothing."""
    _, _, expected = path.stem.rpartition("-")
    has_digest = path.stem.startswith("step-") and path.stem.count("-") == 3
    return _digest(path.read_bytes()) == expected if has_digest else path.is_file()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGEST_LENGTH]


def _read(path: Path) -> tuple[bytes, str]:
    """The content that is kept of an image, and the suffix of its name."""
    from PIL import Image

    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("is no file")
    if found.st_size > MAX_BYTES:
        raise ValueError(f"has {found.st_size} bytes, and at most {MAX_BYTES} are taken")
    content = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is lower
        opened = Image.open(io.BytesIO(content), formats=_FORMATS)
    with opened as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"has {width} x {height} pixels, and at most {MAX_PIXELS} are taken")
        image.load()
        is_plain = image.mode == "RGB" and image.getexif().get(_ORIENTATION, 1) == 1
        if is_plain and image.format in _SUFFIXES:
            return content, _SUFFIXES[image.format]
        plain = io.BytesIO()
        _flat(image).save(plain, "PNG")
        return plain.getvalue(), ".png"


def _flat(image: Any) -> Any:
    """Return the pixels that vLLM reads: upright, over white where they are transparent."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if not image.has_transparency_data or image.mode == "RGB":
        return image.convert("RGB")
    layer = image.convert("RGBA")
    white = Image.new("RGB", layer.size, (255, 255, 255))
    white.paste(layer, mask=layer.getchannel("A"))
    return white
