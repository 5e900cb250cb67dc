"""One small request over HTTP, for those who keep no connection.

Engines and managers are reached directly: a proxy for the outer world does not know 127.0.0.1. A token goes
to the address that was asked for alone: httpx2 follows a redirect to another one without it.
"""

import asyncio
import logging
import os
import socket
import ssl
from pathlib import Path

from rl_agent.http.tls import trusting

MAX_BYTES = 8 * 2**20


class RequestRefused(OSError):
    """The server answers with a status from 400 on."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"{url} answers {status} {reason}")
        self.status, self.reason = status, reason


def request(
    url: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    timeout_s: float,
    tls_ca: Path | None = None,
    uses_proxy: bool = False,
) -> bytes:
    """Return at most `MAX_BYTES` of the answer; with a body, JSON, it is a POST.

    It runs an event loop of its own, so it is not called inside one.
    `timeout_s` is for connecting and the whole answer, however slowly it comes; names are resolved before.

    Raises RequestRefused, else OSError (TimeoutError at the deadline), and ValueError for an address that is
    none.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: expected http://host:port")
    import httpx2  # it takes 40 ms

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each request
    headers = {"Accept-Encoding": "identity"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    client = httpx2.AsyncClient(
        headers=headers,
        verify=trusting(tls_ca) if url.startswith("https:") else False,
        trust_env=uses_proxy,
        follow_redirects=True,
        timeout=None,
    )

    async def ask() -> bytes:
        content = bytearray()
        sending = client.stream("GET" if body is None else "POST", url, content=body)
        async with asyncio.timeout(timeout_s), client, sending as answer:
            if answer.status_code >= 300:
                raise RequestRefused(url, answer.status_code, answer.reason_phrase)
            async for part in answer.aiter_raw():
                content += part
                if len(content) >= MAX_BYTES:
                    break
        return bytes(content[:MAX_BYTES])

    try:
        return asyncio.run(ask())
    except httpx2.InvalidURL as error:
        raise ValueError(f"{url}: {error}") from error
    except httpx2.HTTPError as error:
        raise _cause(error) from error
    except TimeoutError:
        raise TimeoutError(f"no whole answer within {timeout_s:g} s") from None


def _cause(error: Exception) -> OSError:
    """Return the error that the libraries wrapped; asyncio hides the system's words for a socket's errors."""
    inner: BaseException = error
    while deeper := inner.__cause__ or inner.__context__:
        inner = deeper
    if not isinstance(inner, OSError):
        return ConnectionError(f"no answer of HTTP: {inner}"[:300])
    if not inner.errno or isinstance(inner, ssl.SSLError | socket.gaierror):
        return inner
    return OSError(inner.errno, os.strerror(inner.errno))
