"""Images of environments: whatever they are, what is kept is what the engine saw, or the episode ends."""

import hashlib
import io
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal, StoreError
from rl_agent.rollout.trajectories import images
from rl_agent.rollout.trajectories.images import digest_of, keep_images, recorded_image
from rl_agent.types import Observation


def keep(tmp_path: Path, image: object) -> Path:
    return Path(keep_images(Observation("look", (str(image),)), tmp_path / "images").images[0])


def png(width: int, height: int) -> bytes:
    """A PNG of so many pixels, said in its header alone."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def drawn(tmp_path: Path, mode: str, name: str = "screen.png", **how: object) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 32, 4), np.uint8)
    path = tmp_path / name
    Image.fromarray(pixels, "RGBA").convert(mode).save(path, **how)
    return path


def as_vllm_reads(path: Path) -> np.ndarray:
    """Read an image as `vllm.multimodal` does: upright, over white, RGB."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode != "RGB" and image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.new("RGB", layer.size, (255, 255, 255))
        image.paste(layer, mask=layer.split()[3])
    return np.asarray(image.convert("RGB"))


def as_llamafactory_reads(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA"])
def test_engine_and_trainer_read_the_same_pixels_of_what_is_kept(tmp_path, mode):
    path = drawn(tmp_path, "P", transparency=3) if mode == "PA" else drawn(tmp_path, mode)
    kept = keep(tmp_path, path)
    assert (as_vllm_reads(kept) == as_llamafactory_reads(kept)).all()
    assert (as_vllm_reads(kept) == as_vllm_reads(path)).all()


@pytest.mark.parametrize("name", ["grey.png", "grey.tiff"])
def test_grey_of_16_bits_is_kept_as_the_grey_that_it_shows(tmp_path, name):
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(levels * 257).save(tmp_path / name)
    kept = np.asarray(Image.open(keep(tmp_path, tmp_path / name)))
    assert (kept == levels[:, :, None]).all()


def test_a_photo_that_was_taken_sideways_is_kept_upright(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    path = drawn(tmp_path, "RGB", "photo.jpg", exif=turned)
    kept = keep(tmp_path, path)
    assert as_llamafactory_reads(kept).shape == (32, 48, 3)
    assert (as_llamafactory_reads(kept) == as_vllm_reads(path)).all()


def test_a_plain_picture_is_kept_byte_for_byte(tmp_path):
    path = drawn(tmp_path, "RGB")
    assert keep(tmp_path, path).read_bytes() == path.read_bytes()


BROKEN = {
    "missing": lambda path: None,
    "truncated": lambda path: path.write_bytes(cut_in_half(drawn(path.parent, "RGB"))),
    "bomb": lambda path: path.write_bytes(png(30_000, 30_000)),
    "large": lambda path: path.write_bytes(png(9_000, 9_000)),
    "postscript": lambda path: path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    ),
    "folder": lambda path: path.mkdir(),
    "text": lambda path: path.write_text("404 not found"),
    "many bytes": lambda path: (path.touch(), os.truncate(path, images.MAX_BYTES + 1)),
    "endless": lambda path: "/dev/zero",
    "zero in its name": lambda path: "screen\0.png",
}


def cut_in_half(path: Path) -> bytes:
    whole = path.read_bytes()
    return whole[: len(whole) // 2]


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_a_bad_or_too_large_image_ends_its_episode_alone(tmp_path, make):
    path = tmp_path / "screen.png"
    other = make(path)
    with pytest.raises(EnvironmentRefusal, match=r"cannot be kept: ."):
        keep(tmp_path, other if isinstance(other, str) else path)
    assert not (tmp_path / "images").exists()


def test_a_full_disk_is_no_fault_of_the_environment(tmp_path):
    (tmp_path / "images").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="images"):
        keep(tmp_path, drawn(tmp_path, "RGB"))


def test_an_image_that_was_changed_or_cut_later_is_not_what_was_seen(tmp_path):
    kept, root = keep(tmp_path, drawn(tmp_path, "RGB")), tmp_path / "images"
    assert recorded_image(str(kept), root) == kept
    whole = kept.read_bytes()
    for content in (whole[:-1], whole + b"x", b""):
        kept.write_bytes(content)
        assert recorded_image(str(kept), root) is None
    kept.unlink()
    assert recorded_image(str(kept), root) is None


def test_images_are_found_after_their_log_path_was_moved(tmp_path):
    kept = keep(tmp_path, drawn(tmp_path, "RGB"))
    (tmp_path / "images").rename(tmp_path / "moved")
    moved = recorded_image(str(kept), tmp_path / "moved")
    assert moved == tmp_path / "moved" / kept.parent.name / kept.name


def test_an_image_that_was_kept_before_names_had_digests_is_taken_as_it_is(tmp_path):
    old = tmp_path / "step-000-0.png"
    Image.new("RGB", (8, 8)).save(old)
    assert recorded_image(str(old), tmp_path) == old


def test_an_image_is_one_file_named_by_its_digest_however_often_shown(tmp_path):
    kept = {keep(tmp_path, drawn(tmp_path, "RGB", f"{n}.png")) for n in range(5)}
    (path,) = kept
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path == tmp_path / "images" / digest[:2] / f"{digest}.png"
    assert digest_of(str(path)) == digest
    assert [file for file in (tmp_path / "images").rglob("*") if file.is_file()] == [path]


def test_many_writers_of_one_image_leave_it_whole(tmp_path):
    source = drawn(tmp_path, "RGB")
    with ThreadPoolExecutor(8) as pool:
        kept = set(pool.map(lambda _: keep(tmp_path, source), range(64)))
    (path,) = kept
    assert path.read_bytes() == source.read_bytes()
    assert list(path.parent.iterdir()) == [path]


def test_an_image_that_a_crash_cut_is_written_again(tmp_path):
    source = drawn(tmp_path, "RGB")
    kept = keep(tmp_path, source)
    kept.write_bytes(source.read_bytes()[:100])
    assert keep(tmp_path, source) == kept
    assert kept.read_bytes() == source.read_bytes()


def test_any_bytes_are_an_image_or_an_end_of_the_episode(tmp_path):
    rng, whole = np.random.default_rng(0), drawn(tmp_path, "RGBA").read_bytes()
    gif = io.BytesIO()
    Image.new("P", (32, 32)).save(gif, "GIF")
    for start in (whole, gif.getvalue(), drawn(tmp_path, "RGB", "photo.webp").read_bytes()):
        for _ in range(60):
            content = bytearray(start)
            for at in rng.integers(0, len(content), 4):
                content[at] = rng.integers(256)
            path = tmp_path / "flipped"
            path.write_bytes(content)
            try:
                as_llamafactory_reads(keep(tmp_path, path))
            except EnvironmentFailure:
                continue
