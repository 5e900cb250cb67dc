"""Bounds what a server may answer to a client of httpx2, which itself reads and inflates without end."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

PLAIN = {"Accept-Encoding": "identity"}
"""Headers of a client whose answers are bounded: compressed ones are not inflated, and cannot be read."""


def bounded(most_bytes: int) -> Callable[[Any], Awaitable[None]]:
    """Make an event hook for responses that lets at most so many bytes of one be read.

    Streams of events have bounds of their own. Reading more raises httpx2.StreamError.
    """

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells of each request; there are thousands

    async def bound(response: Any) -> None:
        if "content-encoding" in response.headers:
            del response.headers["content-encoding"]
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _bounded(response.stream, most_bytes)

    return bound


def _bounded(stream: Any, most_bytes: int) -> Any:
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = most_bytes
            async for part in stream:
                left -= len(part)
                if left < 0:
                    raise httpx2.StreamError(f"it sent more than {most_bytes >> 20} MiB in one message")
                yield part

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()
