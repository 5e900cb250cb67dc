"""Owns the socket of a source's connection, so that another thread can end whatever waits on it."""

import socket
import threading

from rl_agent.weights.connection.channel import shut


class Interruptible:
    """A connection over one socket at a time, which is shut down to interrupt it. Thread-safe."""

    is_cut_at_once = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_interrupted = False

    def interrupt(self) -> None:
        """End whatever another thread waits for on this connection, now and later."""
        with self._lock:
            self._is_interrupted = True
            if self._socket is not None:
                shut(self._socket)

    def close(self) -> None:
        """Close the socket; another one may be kept after it."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _keep(self, connection: socket.socket) -> socket.socket:
        """Own this socket, and close the one before. Raises ConnectionAbortedError once interrupted."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = connection
            if self._is_interrupted:
                raise ConnectionAbortedError("interrupted")
            return connection
