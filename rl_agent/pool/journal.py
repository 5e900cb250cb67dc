"""What a manager must remember over its own death: one file, one JSON record a line, only ever appended to.

A record is on the disk before anything that depends on it is said: a submission before it is acknowledged, a
result before a consumer sees it. Many records share one fsync. A half-written last line (the manager died
while writing) is dropped on reading; anything else that cannot be read is an error.
"""

import asyncio
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from rl_agent.errors import StoreError


class Journal:
    """`commit` returns once its records are on the disk; `run` must be running for that."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()

    async def commit(self, records: Iterable[dict[str, Any]]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines += [to_json(record) + b"\n" for record in records]
        self._waiting.append(done)
        self._wake.set()
        await done

    async def run(self) -> None:
        """Write until cancelled. Raises StoreError if the disk takes no more."""
        try:
            with self._path.open("ab") as file:
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    lines, self._lines = self._lines, []
                    waiting, self._waiting = self._waiting, []
                    await asyncio.to_thread(_write, file.fileno(), b"".join(lines))
                    for done in waiting:
                        if not done.done():
                            done.set_result(None)
        except OSError as error:
            raise StoreError(f"the journal {self._path} cannot be written: {error.strerror}") from error


def _private(path: str, flags: int) -> int:
    """It holds prompts, and the token of transfers."""
    return os.open(path, flags, 0o600)


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The records in order. Raises StoreError if a line other than an unfinished last one is damaged."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                raise StoreError(f"{path}:{number} is no JSON: {error}") from error


def rewrite_journal(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Replace it by `records`, whole: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb", opener=_private) as file:
        for record in records:
            file.write(to_json(record) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
