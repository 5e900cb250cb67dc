"""Listens for receivers, and serves those that show the token.

A thread a connection. Where there are as many as there may be, the next one waits until another has ended.
"""

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from rl_agent.weights.connection.channel import Channel, accept, shut
from rl_agent.weights.sources.source import reason_of

_log = logging.getLogger(__name__)
_ACCEPT_POLL_S = 0.2
_BACKLOG = 128

Serve = Callable[[Channel, str, ExitStack], None]
"""Answers one who has shown the token, at a host; what it enters is left when that one is gone."""


class Listener:
    """A listening server, open from entry to exit of its block; no thread of it is left after."""

    def __init__(
        self, hosts: Sequence[str], port: int, *, most: int, token: bytes | None, idle_s: float, serve: Serve
    ) -> None:
        """Listens at once; without a `token`, whoever connects is turned away. Raises OSError."""
        self.stopping = threading.Event()
        self._token = token
        self._idle_s = idle_s
        self._serve = serve
        self._lock = threading.Lock()
        self._places = threading.Semaphore(most)
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._listeners = _listen(hosts, port)
        self.addresses: list[tuple[str, int]] = [listener.getsockname()[:2] for listener in self._listeners]
        self._acceptors = [
            threading.Thread(target=self._accept, args=(listener,), name="weights-accept", daemon=True)
            for listener in self._listeners
        ]

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._connections)

    def change_token(self, token: bytes) -> None:
        """Require this token from now on; clients that are connected with another are dropped."""
        with self._lock:
            if token != self._token:
                self._token = token
                for connection in self._connections:
                    shut(connection)

    def __enter__(self) -> "Listener":
        for acceptor in self._acceptors:
            acceptor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        for acceptor, listener in zip(self._acceptors, self._listeners, strict=True):
            acceptor.join()
            listener.close()
        with self._lock:
            threads = list(self._connections.values())
            for connection in self._connections:
                shut(connection)
        for thread in threads:
            thread.join()

    def _accept(self, listener: socket.socket) -> None:
        while not self.stopping.is_set():
            try:
                connection, peer = listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # a client that was gone before it was accepted, or no descriptors left
                _log.warning("cannot accept a receiver: %s", error)
                self.stopping.wait(_ACCEPT_POLL_S)
                continue
            if self._wait_for_place():
                self._let_in(connection, peer[0])
            else:
                connection.close()

    def _wait_for_place(self) -> bool:
        """Wait until one more connection may be open; False if the server stops before."""
        while not self.stopping.is_set():
            if self._places.acquire(timeout=_ACCEPT_POLL_S):
                return True
        return False

    def _let_in(self, connection: socket.socket, host: str) -> None:
        thread = threading.Thread(
            target=self._meet, args=(connection, host), name=f"weights-{host}", daemon=True
        )
        with self._lock:
            self._connections[connection] = thread
            has_token = self._token is not None
        if has_token:
            thread.start()
        else:
            self._forget(connection)

    def _meet(self, connection: socket.socket, host: str) -> None:
        has_token = False
        with self._lock:
            token = self._token
        assert token is not None
        try:
            with ExitStack() as closing:
                closing.callback(self._forget, connection)
                channel = accept(connection, token, self._idle_s)
                has_token = True
                self._serve(channel, host, closing)
        except Exception as error:  # of whatever kind, it is this connection's
            if self.stopping.is_set():
                return
            if has_token or isinstance(error, ConnectionError):  # it has changed its mind
                _log.info("receiver %s left: %s", host, reason_of(error))
            else:
                _log.warning("receiver %s was refused: %s", host, reason_of(error))

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            del self._connections[connection]
        connection.close()
        self._places.release()


def _listen(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Listen at all addresses or, where an OSError is raised, at none."""
    with ExitStack() as stack:
        listeners = []
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
            listener.settimeout(_ACCEPT_POLL_S)
            listeners.append(stack.enter_context(listener))
        stack.pop_all()
    return listeners
