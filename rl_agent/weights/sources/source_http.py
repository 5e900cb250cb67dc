"""Reads pieces over HTTP, one request each: the fallback for restricted networks.

The standard library bounds each read of its socket. What drips all the same (a header, the size of a chunk,
an endless row of "100 Continue") ends when whoever asks has waited long enough and shuts the socket down.
"""

import random
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection as HttpClient
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from rl_agent.weights.format.pieces import Bits
from rl_agent.weights.sources.interruptible import Interruptible
from rl_agent.weights.store.store import MANIFEST, version_name


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A folder of versions behind a URL. It is reached as a worker reaches its manager, by no proxy of the
    environment's; a redirect is a failure, since the token is for this host alone."""

    url: str
    headers: Callable[[], Mapping[str, str]]
    """Returns the headers of every request: the token that is valid now."""
    idle_timeout_s: float
    tls: ssl.SSLContext | None = None
    """Certificates to trust; None: those of the system."""

    def __str__(self) -> str:
        return self.url

    def connection(self) -> "HttpConnection":
        return HttpConnection(self)


class HttpConnection(Interruptible):
    """Raises WeightsError for an answer that is none, OSError where the connection breaks."""

    def __init__(self, source: HttpSource) -> None:
        super().__init__()
        self._source = source
        self._url = urlsplit(source.url)

    def open(self, deadline: Deadline) -> None:
        """Check the address; each request makes its own connection."""
        if self._url.scheme not in ("http", "https") or self._url.hostname is None:
            raise WeightsError(f"{self._source.url}: is not an http address")

    def manifest(self, weight_version: int, digest: str | None, deadline: Deadline) -> Manifest:
        content = self._document(f"{version_name(weight_version)}/{MANIFEST}", deadline)
        return parse_manifest(content, expected_digest=digest)

    def recommend(
        self, weight_version: int, blob: str, bits: Bits, limit: int, wait_s: float, deadline: Deadline
    ) -> list[int]:
        """Return any of them: such a server has whole versions and does not know who else asks."""
        candidates = np.flatnonzero(bits).tolist()
        return random.sample(candidates, min(limit, len(candidates)))

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None:
        span = f"bytes={start}-{start + len(target) - 1}"
        path = f"{version_name(weight_version)}/{blob}.bin"
        with self._get(path, deadline, {"Range": span}) as response:
            if response.status != 206:
                raise WeightsError(
                    f"status {response.status} instead of 206: the server does not support ranges"
                )
            _read_into(response, target, deadline)

    def _document(self, path: str, deadline: Deadline) -> bytes:
        with self._get(path, deadline, {}) as response:
            length = response.length or 0
            if not 0 < length <= MAX_MANIFEST_BYTES:
                raise WeightsError(f"{path}: has a length of {length} bytes")
            content = response.read(length)
            if len(content) < length:
                raise ConnectionResetError("the answer was cut short")
            return content

    @contextmanager
    def _get(self, path: str, deadline: Deadline, headers: dict[str, str]) -> Iterator[HTTPResponse]:
        client = self._client(deadline.remaining_s(self._source.idle_timeout_s))
        try:
            client.connect()
            self._keep(client.sock)
            own = {**self._source.headers(), **headers, "Connection": "close"}
            client.request("GET", f"{self._url.path.rstrip('/')}/{path}", headers=own)
            with client.getresponse() as response:
                if not 200 <= response.status < 300:
                    raise WeightsError(f"{path}: status {response.status}")
                yield response
        except HTTPException as error:
            raise WeightsError(f"{path}: {error!r}") from error
        finally:
            client.close()
            self.close()

    def _client(self, timeout_s: float) -> HttpClient:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            return HTTPSConnection(host, port, timeout=timeout_s, context=self._source.tls)
        return HttpClient(host, port, timeout=timeout_s)


def _read_into(response: HTTPResponse, target: memoryview, deadline: Deadline) -> None:
    while target:
        deadline.remaining_s()
        count = response.readinto(target)
        if not count:
            raise ConnectionResetError("the answer was cut short")
        target = target[count:]
