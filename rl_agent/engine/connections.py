"""Connections to engines and pools, kept for the next request, also for that of another client."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from yarl import URL

from rl_agent.http.kept_connections import KeptConnections, head_of
from rl_agent.http.tls import trusting

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 3.0
"""Below the 5 s after which vLLM's HTTP server drops an idle connection under our next request."""


class EngineConnections:
    """Opens as many connections as there are requests at the same time, on one event loop.

    Our own ones serve http. An aiohttp session serves https, follows redirects, and sends again what may be
    sent twice: a server may have closed a connection just before it was used.
    """

    def __init__(self, tls_ca: Path | None, keepalive_s: float = KEEPALIVE_S) -> None:
        """`tls_ca` has certificates that are trusted besides the system's."""
        self._kept = KeptConnections(keepalive_s=keepalive_s, connect_timeout_s=CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive_s, ssl=trusting(tls_ca)),
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        self._kept.close()
        await self._session.close()

    async def send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> tuple[int, bytes]:
        """Return status and body of the answer. Raises ConnectionError, and TimeoutError at the deadline."""
        async with asyncio.timeout(timeout_s):
            if url.scheme == "http" and url.user is None:
                try:
                    async with self._kept.open(url.origin(), head_of(method, url, headers), body) as answer:
                        payload = await answer.content.read()
                        if not 300 <= answer.status < 400:
                            return answer.status, payload
                except ConnectionError:
                    if method == "POST":
                        raise
            try:
                async with self._session.request(method, url, data=body or None, headers=headers) as response:
                    return response.status, await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise ConnectionError(f"{type(error).__name__}: {error}") from error
