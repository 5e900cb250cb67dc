"""Images of requests, by the SHA-256 of their files: each comes once from clients and goes once to engines.

    client ─(new ones with their content)─► ImageStore ─(new ones with their content)─► engine
       └────◄─(409: it needs these)              └────◄─(409: it needs these)─────────────┘

They lie in a private database on the disk, so memory stays bounded, and the operating system removes it
whatever way the manager ends. Nothing here decodes an image.
"""

import asyncio
import sqlite3
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from rl_agent.engine.packed import ImageContent, check_contents

MAX_BYTES = 2**33
"""The most bytes on the disk, besides images of open requests; those used last are kept."""


class ImageStore:
    """Used on one event loop; the disk is read and written in threads."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """All that are kept, the one used last at the end."""
        self._bytes = 0
        self._dropped: list[str] = []
        """Images that are only on the disk, until others are written."""
        self._used: Counter[str] = Counter()
        """The number of open requests that show each image."""
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    async def add(self, images: Sequence[ImageContent]) -> list[str]:
        """Keep what was sent; return the digests of those that are missing.

        Raises ValueError for a content that has another digest.
        """
        new = {image.digest: content for image in images if (content := image.content) is not None}
        new = {digest: content for digest, content in new.items() if digest not in self._sizes}
        if new:
            await asyncio.to_thread(check_contents, images)
            dropped, self._dropped = self._dropped, []
            await asyncio.to_thread(self._write, new, dropped)
        for digest, content in new.items():
            if digest not in self._sizes:
                self._bytes += len(content)
            self._sizes[digest] = len(content)
        for image in images:
            if image.digest in self._sizes:
                self._sizes.move_to_end(image.digest)
        return [digest for digest in {image.digest: None for image in images} if digest not in self._sizes]

    @contextmanager
    def kept(self, digests: Sequence[str]) -> Iterator[None]:
        """Keep images, also those that come now, while a request that shows them is open."""
        if not digests:
            yield
            return
        self._used.update(digests)
        try:
            yield
        finally:
            self._used -= Counter(digests)
            self._drop_oldest()

    async def read(self, digests: Sequence[str], new: Set[str]) -> list[ImageContent]:
        """Return these images, those in `new` with their content, once each."""
        wanted = [digest for digest in dict.fromkeys(digests) if digest in new]
        contents = dict(zip(wanted, await asyncio.to_thread(self._read, wanted), strict=True))
        return [ImageContent(digest, contents.pop(digest, None)) for digest in digests]

    def _drop_oldest(self) -> None:
        """Forget what is too much; the disk follows when others are written."""
        for digest in list(self._sizes):
            if self._bytes <= self._max_bytes:
                return
            if not self._used[digest]:
                self._bytes -= self._sizes.pop(digest)
                self._dropped.append(digest)

    def _write(self, new: dict[str, bytes], dropped: Sequence[str]) -> None:
        with self._lock, self._opened() as database:
            database.executemany("DELETE FROM images WHERE digest = ?", ((digest,) for digest in dropped))
            database.executemany("INSERT OR REPLACE INTO images VALUES (?, ?)", new.items())

    def _read(self, digests: Sequence[str]) -> list[bytes]:
        with self._lock, self._opened() as database:
            return [
                database.execute("SELECT content FROM images WHERE digest = ?", (digest,)).fetchone()[0]
                for digest in digests
            ]

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:  # an empty name: a temporary file without a name
            self._database = sqlite3.connect("", check_same_thread=False)
            self._database.execute("CREATE TABLE images (digest TEXT PRIMARY KEY, content BLOB)")
        return self._database
