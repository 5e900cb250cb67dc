"""Images of observations, kept beside the trajectories that name them.

    an environment's file ─► decoded once, bounded ─► images/<first two of the digest>/<digest>.<suffix>

An environment may delete or overwrite a screenshot after its next step, and the engine reads files below the
log path only; so each image is copied before it is used. What engine and trainer would read in two ways
(transparency, a turned photo, other modes than RGB) is written as plain RGB pixels, as vLLM reads it.

A file's name is the SHA-256 of its content. So equal images are one file, whoever shows them and however
often; any number of processes may keep the same image at once; and a file that was changed later is not what
was seen.
"""

import hashlib
import io
import re
import stat
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_agent.errors import EnvironmentRefusal, StoreError
from rl_agent.system.files import write_whole
from rl_agent.types import Observation

MAX_PIXELS = 2**26
MAX_BYTES = 2**26
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}
"""The formats that are kept as they are."""
_FORMATS = (*_SUFFIXES, "GIF", "BMP", "TIFF")
"""The formats that are read: some of those that Pillow knows start programs."""
_ORIENTATION = 0x0112
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOLDER = "images"


def keep_images(observation: Observation, images: Path) -> Observation:
    """Keep the images of an observation in the folder `images`; returns it with their new paths.

    Raises EnvironmentRefusal for one that cannot be read, StoreError if there is no place for it.
    """
    kept = []
    for image in observation.images:
        try:
            content = _content_of(Path(image))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise EnvironmentRefusal(f"its image {image} cannot be kept: {why}") from error
        kept.append(str(keep_image(content, images, f"its image {image}")))
    return replace(observation, images=tuple(kept))


def keep_image(content: bytes, images: Path, name: str) -> Path:
    """Keep an image in the folder `images`; returns its file. Raises like `keep_images`."""
    try:
        content, suffix = _plain(content)
    except Exception as error:  # Pillow raises anything for a damaged file
        why = str(getattr(error, "strerror", None) or error or type(error).__name__)
        raise EnvironmentRefusal(f"{name} cannot be kept: {why}") from error
    digest = hashlib.sha256(content).hexdigest()
    target = images / digest[:2] / f"{digest}{suffix}"
    try:
        _write_once(target, content)
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror}") from error
    return target


def _write_once(target: Path, content: bytes) -> None:
    """Write an image that is not there yet, or that a crash has damaged."""
    if target.is_file() and target.read_bytes() == content:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content, is_durable=False)


def digest_of(path: str) -> str | None:
    """Return the digest of a kept image, which its name is; None for a file of another name."""
    stem = Path(path).stem
    return stem if _DIGEST.fullmatch(stem) else None


def image_size(path: str) -> tuple[int, int] | None:
    """Return width and height of an image; None for a file that is none."""
    from PIL import Image

    try:
        with Image.open(path, formats=_FORMATS) as image:
            return image.size
    except (OSError, ValueError, Image.DecompressionBombError):
        return None


def recorded_image(path: str, images: Path) -> Path | None:
    """Find a recorded image, also if the log path was moved; None if it is gone or was changed."""
    parts = Path(path).parts
    moved = [parts[at + 1 :] for at, part in enumerate(parts) if part == _FOLDER]
    for candidate in (Path(path), *(images.joinpath(*tail) for tail in moved)):
        try:
            if is_as_seen(candidate):
                return candidate
        except (OSError, ValueError):
            continue
    return None


def is_as_seen(path: Path) -> bool:
    """Return whether a file has the content that its name says; yes where the name says nothing.

    Raises OSError for what cannot be read, or is not a file.
    """
    expected = digest_of(str(path))
    if expected is None:
        return path.is_file()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected


def _content_of(path: Path) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is not a file")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"has {status.st_size} bytes, and at most {MAX_BYTES} are taken")
    return path.read_bytes()


def _plain(content: bytes) -> tuple[bytes, str]:
    """The content that is kept of an image, and the suffix of its name."""
    from PIL import Image

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
    if image.mode.startswith("I"):  # 16 bits of grey, of which a conversion would cut off all above 255
        image = image.point(lambda value: value / 256).convert("L")
    if not image.has_transparency_data or image.mode == "RGB":
        return image.convert("RGB")
    layer = image.convert("RGBA")
    white = Image.new("RGB", layer.size, (255, 255, 255))
    white.paste(layer, mask=layer.getchannel("A"))
    return white
