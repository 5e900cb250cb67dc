"""Pieces over HTTP, one request each: from whom one can reach by nothing else."""

import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import numpy as np

from rl_agent.errors import WeightsError
from rl_agent.weights.deadline import Deadline
from rl_agent.weights.manifest import Manifest, parse_manifest
from rl_agent.weights.pieces import Bits
from rl_agent.weights.store import MANIFEST, version_name

_READ_BYTES = 2**20
_MAX_DOCUMENT_BYTES = 2**27


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A folder of versions behind a URL. It is reached as a worker reaches its manager, by no proxy of the
    environment's; a redirect is a failure, since the token is for this host alone."""

    url: str
    headers: Callable[[], Mapping[str, str]]
    """Of every request: the token that is valid now."""
    idle_timeout_s: float
    tls: ssl.SSLContext | None = None
    """Whom to trust; None: whom the system trusts."""

    def __str__(self) -> str:
        return self.url

    def connection(self) -> "HttpConnection":
        return HttpConnection(self)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Leaves the answer an HTTPError."""


class HttpConnection:
    """Raises WeightsError for an answer that is none, OSError where the connection breaks."""

    def __init__(self, source: HttpSource) -> None:
        self._source = source
        self._is_interrupted = False

    def open(self, deadline: Deadline) -> None:
        """Only checks the address: each request makes its own connection."""
        if urlsplit(self._source.url).scheme not in ("http", "https"):
            raise WeightsError(f"{self._source.url}: is not an http address")

    def interrupt(self) -> None:
        """Seen before the next read, which waits no longer than the idle timeout."""
        self._is_interrupted = True

    def close(self) -> None:
        """Nothing is open between requests."""

    def manifest(self, weight_version: int, digest: str | None, deadline: Deadline) -> Manifest:
        content = self._document(f"{version_name(weight_version)}/{MANIFEST}", deadline)
        return parse_manifest(content, expected_digest=digest)

    def recommend(
        self, weight_version: int, blob: str, wanted: Bits, limit: int, wait_s: float, deadline: Deadline
    ) -> list[int]:
        """Any of them: such a server has whole versions and does not know who else asks."""
        candidates = np.flatnonzero(wanted).tolist()
        return random.sample(candidates, min(limit, len(candidates)))

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None:
        span = f"bytes={start}-{start + len(target) - 1}"
        with self._get(f"{version_name(weight_version)}/{blob}.bin", deadline, {"Range": span}) as response:
            if response.status != 206:
                raise WeightsError(f"status {response.status} instead of 206: the server gives no ranges")
            self._read_into(response, target, deadline)

    def _document(self, path: str, deadline: Deadline) -> bytes:
        with self._get(path, deadline, {}) as response:
            length = response.length or 0
            if not 0 < length <= _MAX_DOCUMENT_BYTES:
                raise WeightsError(f"{path}: has a length of {length} bytes")
            content = bytearray(length)
            self._read_into(response, memoryview(content), deadline)
            return bytes(content)

    def _get(self, path: str, deadline: Deadline, headers: dict[str, str]) -> HTTPResponse:
        request = Request(  # noqa: S310 - `open` has checked the scheme
            f"{self._source.url.rstrip('/')}/{path}",
            headers={**self._source.headers(), **headers},
        )
        try:
            timeout_s = deadline.remaining_s(self._source.idle_timeout_s)
            tls = HTTPSHandler(context=self._source.tls)
            opener = build_opener(ProxyHandler({}), tls, _NoRedirects)
            response: HTTPResponse = opener.open(request, timeout=timeout_s)
        except HTTPException as error:
            raise WeightsError(f"{path}: {error}") from error
        return response

    def _read_into(self, response: HTTPResponse, target: memoryview, deadline: Deadline) -> None:
        position = 0
        while position < len(target):
            deadline.remaining_s()
            if self._is_interrupted:
                raise ConnectionAbortedError("interrupted")
            try:
                part = response.read1(min(_READ_BYTES, len(target) - position))
            except HTTPException as error:
                raise WeightsError(str(error)) from error
            if not part:
                raise ConnectionResetError("the answer was cut short")
            target[position : position + len(part)] = part
            position += len(part)
