"""One small request over HTTP, for those who keep no connection; `urllib`, for it loads in no time.

Engines and managers are reached directly: a proxy for the outer world does not know 127.0.0.1. A token goes
to the address that was asked for alone: a redirect to another one is followed without it.
"""

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from rl_agent.tls import trusting

MAX_BYTES = 8 * 2**20


def request(
    url: str,
    body: bytes | None = None,
    *,
    token: str | None = None,
    timeout_s: float,
    tls_ca: Path | None = None,
    uses_proxy: bool = False,
    follows_redirects: bool = True,
) -> bytes:
    """Return at most `MAX_BYTES` of the answer; with a body, JSON, it is a POST.

    `timeout_s` is for connecting and the whole answer, however slowly it comes; names are resolved before.

    Raises urllib.error.HTTPError for a status from 400 on, else OSError (URLError, if there is no
    connection), and ValueError for an address that is none.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: expected http://host:port")
    asked = urllib.request.Request(url, body)  # noqa: S310 - the scheme was checked
    if body is not None:
        asked.add_header("Content-Type", "application/json")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    context = trusting(tls_ca) if url.startswith("https:") else None
    with _Deadline(timeout_s) as deadline:
        handlers: list[urllib.request.BaseHandler] = [
            _Handler(deadline),
            _TlsHandler(deadline, context),
            _Redirects(follows_redirects),
        ]
        if not uses_proxy:
            handlers.append(urllib.request.ProxyHandler({}))
        try:
            with urllib.request.build_opener(*handlers).open(asked, timeout=timeout_s) as answer:
                content: bytes = answer.read(MAX_BYTES)
                if answer.length and len(content) < MAX_BYTES:
                    raise http.client.IncompleteRead(content, answer.length)
        except http.client.HTTPException as error:
            deadline.check()
            raise ConnectionError(f"{url}: no answer of HTTP: {error!r}"[:300]) from error
        except OSError:
            deadline.check()
            raise
        deadline.check()
        return content


def reason_of(error: OSError) -> str:
    """Return why there was no answer, in words: a URLError hides its reason in a repr."""
    reason = getattr(error, "reason", error)
    return " ".join(str(getattr(reason, "strerror", None) or reason).split())


class _Deadline:
    """Ends the connections of one request when its time is over; a socket's own limit is for each byte."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._is_over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def covers(self, connected: socket.socket) -> None:
        self._sockets.append(connected)
        if self._is_over:
            self._end()

    def check(self) -> None:
        """Raises TimeoutError once the time is over: what was read until then may lack its end."""
        if self._is_over:
            raise TimeoutError(f"no whole answer within {self._timeout_s:g} s")

    def _end(self) -> None:
        self._is_over = True
        for one in self._sockets:
            with contextlib.suppress(OSError):  # it has been closed
                socket.socket.shutdown(one, socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    def __init__(self, deadline: _Deadline, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.covers(self.sock)


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    pass


class _Handler(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._connection: Any = partial(_Connection, deadline)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _TlsHandler(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline, context: ssl.SSLContext | None) -> None:
        super().__init__(context=context)
        self._connection: Any = partial(_TlsConnection, deadline)
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req, context=self._tls)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, follows: bool) -> None:
        self._follows = follows

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not self._follows:
            raise urllib.error.HTTPError(req.full_url, code, "a redirect", headers, fp)
        if not newurl.startswith(("http://", "https://")):
            raise urllib.error.HTTPError(req.full_url, code, "a redirect to no HTTP address", headers, fp)
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            found.remove_header("Authorization")
        return found
