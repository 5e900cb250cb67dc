"""Remembers which images one engine has been sent, so that each goes to it once, whoever shows it."""

import asyncio
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress

from rl_agent.engine.packed import MAX_SENT_IMAGES

COMING_S = 5.0
"""Longest wait for the answer to another request that brings an image."""


class SentImages:
    """The images that an engine has been sent, and those on their way to it, by their digests."""

    def __init__(self) -> None:
        self._sent = set[str]()
        """The engine may have dropped some."""
        self._coming: dict[str, asyncio.Event] = {}
        """Each is set once the request that brings an image is answered, or has failed."""

    async def unsent(self, digests: Set[str]) -> Set[str]:
        """Return those to send, after a wait for others that bring some of them, as siblings do."""
        with suppress(TimeoutError):
            async with asyncio.timeout(COMING_S):
                while coming := [self._coming[each] for each in digests - self._sent if each in self._coming]:
                    await coming[0].wait()
        return digests - self._sent

    @contextmanager
    def coming(self, digests: Set[str]) -> Iterator[asyncio.Event]:
        """Let other requests wait for these images while the block runs, or until the event is set."""
        event = asyncio.Event()
        self._coming |= dict.fromkeys(digests, event)
        try:
            yield event
        finally:
            event.set()
            for digest in digests:
                if self._coming.get(digest) is event:
                    del self._coming[digest]

    def have_come(self, digests: Set[str]) -> None:
        if len(self._sent) > MAX_SENT_IMAGES:
            self._sent.clear()
        self._sent |= digests

    def are_lost(self, digests: Set[str]) -> None:
        self._sent -= digests
