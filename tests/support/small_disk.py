"""A disk that is soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of that size, `256k` or `4m`; the test is skipped where mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs needs privileges")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(file: Path) -> None:
    """Take all that the disk of a file has left."""
    with suppress(OSError), file.open("wb", buffering=0) as unbuffered:
        while True:
            unbuffered.write(bytes(4096))
