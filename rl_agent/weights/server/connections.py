"""Listens for receivers, and serves those that show the token.

A thread a connection. Who does not show the token, and who is dropped for others, is logged now and then.
"""

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType

from rl_agent.unauthenticated import RateLimitedLog, network_of
from rl_agent.weights.connection.channel import Channel, accept, shut
from rl_agent.weights.server.admission import Admission
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
        self._admission = Admission[socket.socket](most)
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._warnings = RateLimitedLog(_log)
        self._listeners = _listen(hosts, port)
        self.addresses: list[tuple[str, int]] = [one.getsockname()[:2] for one in self._listeners]
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
                self._warnings.warning(f"cannot accept a receiver: {error}")
                self.stopping.wait(_ACCEPT_POLL_S)
                continue
            self._let_in(connection, network_of(peer[0]))

    def _let_in(self, connection: socket.socket, host: str) -> None:
        thread = threading.Thread(
            target=self._meet, args=(connection, host), name=f"weights-{host}", daemon=True
        )
        with self._lock:
            if self._token is None:
                connection.close()
                return
            has_room = self._admission.has_room_for(host)
            if has_room:
                self._connections[connection] = thread
                self._drop(self._admission.arrive(connection, host), "showed no token in time")
        if not has_room:
            self._warnings.warning(f"receiver {host} was turned away: all connections are taken")
            connection.close()
            return
        try:
            thread.start()
        except RuntimeError as error:  # there can be no more threads
            self._warnings.warning(f"cannot serve receiver {host}: {error}")
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
                with self._lock:
                    is_served, dropped = self._admission.serve(connection)
                    self._drop(dropped, "has more connections than others, for whom there was none left")
                if is_served:
                    self._serve(channel, host, closing)
        except Exception as error:  # of whatever kind, it is this connection's
            if self.stopping.is_set():
                return
            if has_token or isinstance(error, ConnectionError):  # it has changed its mind
                _log.info("receiver %s left: %s", host, reason_of(error))
            else:
                self._warnings.warning(f"receiver {host} was turned away: {reason_of(error)}")

    def _drop(self, connection: socket.socket | None, why: str) -> None:
        if connection is not None:
            self._warnings.warning(f"a connection was ended: its host {why}")
            shut(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._admission.leave(connection)
            del self._connections[connection]
        connection.close()


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
