"""Reads pieces over HTTP, one request each: the fallback for restricted networks.

The standard library takes the answers apart, from a socket each single read of which ends at the deadline. So
whatever drips (a header, the size of a chunk, an endless row of "100 Continue") drips no longer than that. To
shut the socket down from another thread ends it at once.
"""

import io
import random
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection as HttpClient
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from rl_agent.weights.format.pieces import Bits
from rl_agent.weights.sources.interruptible import Interruptible
from rl_agent.weights.store.store import MANIFEST, version_name

_PORTS = {"http": 80, "https": 443}


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
        self._addresses: list[Any] = []
        self._tls: ssl.SSLContext | None = None

    def open(self, deadline: Deadline) -> None:
        """Find the host, which nothing can interrupt; each request makes its own connection."""
        url = urlsplit(self._source.url)
        if url.scheme not in _PORTS or url.hostname is None:
            raise WeightsError(f"{self._source.url}: is not an http address")
        port = url.port or _PORTS[url.scheme]
        self._host, self._path = url.hostname, url.path.rstrip("/")
        self._addresses = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_STREAM)
        if url.scheme == "https":
            self._tls = self._source.tls or ssl.create_default_context()

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
            _read_into(response, target)

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
        client = HttpClient(self._host)
        try:
            connection = self._connect(deadline)
            client.sock = _Timed(connection, deadline, self._source.idle_timeout_s)
            own = {**self._source.headers(), **headers, "Connection": "close"}
            client.request("GET", f"{self._path}/{path}", headers=own)
            response = client.getresponse()
            if not 200 <= response.status < 300:
                raise WeightsError(f"{path}: status {response.status}")
            yield response
        except HTTPException as error:
            raise WeightsError(f"{path}: {error!r}") from error
        finally:
            client.close()
            self.close()

    def _connect(self, deadline: Deadline) -> socket.socket:
        """Connect to the first of the host's addresses that can be reached."""
        for place, (family, kind, protocol, _, address) in enumerate(self._addresses):
            try:
                connection = self._keep(socket.socket(family, kind, protocol))
                connection.settimeout(deadline.remaining_s(self._source.idle_timeout_s))
                connection.connect(address)
            except OSError:
                if self._is_interrupted or place == len(self._addresses) - 1:
                    raise
            else:
                return connection if self._tls is None else self._encrypted(connection, self._tls, deadline)
        raise WeightsError("the connection was not opened")

    def _encrypted(self, connection: socket.socket, tls: ssl.SSLContext, deadline: Deadline) -> socket.socket:
        wrapped = tls.wrap_socket(connection, server_hostname=self._host, do_handshake_on_connect=False)
        self._keep(wrapped)
        wrapped.settimeout(deadline.remaining_s(self._source.idle_timeout_s))
        wrapped.do_handshake()
        return wrapped


def _read_into(response: HTTPResponse, target: memoryview) -> None:
    while target:
        count = response.readinto(target)
        if not count:
            raise ConnectionResetError("the answer was cut short")
        target = target[count:]


class _Timed:
    """A connected socket as the standard library's client uses one. Its owner closes it."""

    def __init__(self, connection: socket.socket, deadline: Deadline, idle_s: float) -> None:
        self._socket = connection
        self._deadline = deadline
        self._idle_s = idle_s

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReads(self))

    def sendall(self, content: bytes) -> None:
        self._hurry().sendall(content)

    def receive_into(self, buffer: Any) -> int:
        return self._hurry().recv_into(buffer)

    def close(self) -> None:
        """Do nothing: the client calls it before the answer is read, if that is the last one."""

    def _hurry(self) -> socket.socket:
        self._socket.settimeout(self._deadline.remaining_s(self._idle_s))
        return self._socket


class _TimedReads(io.RawIOBase):
    def __init__(self, timed: _Timed) -> None:
        super().__init__()
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.receive_into(buffer)
