"""Moves bytes over a connected socket; no wait on it lasts for ever.

The kernel ends a wait: a piece is then one call, where a timeout of Python's takes hundreds. Its timeout
is set again only when the last one is far from what is left, since setting it waits for the connection's
lock and holds the interpreter's meanwhile.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Callable

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline

_TIMEVAL = struct.Struct("@ll")
_SENDFILE_BYTES = 2**24
_FIRST_BYTES = 2**16
_CLOSED = "the other side closed the connection"
_WITHIN_A_HOST = b"cubic"
"""No link, so nothing to pace: where the system's choice is BBR, its timers cost as much as copying."""


class TimedSocket:
    """A connected socket whose operations end at a deadline, or once no byte has moved for a while."""

    def __init__(self, connection: socket.socket, idle_s: float) -> None:
        """`idle_s`: how long no byte may move."""
        self._socket = connection
        self._idle_s = idle_s
        self._timeout_s = {socket.SO_SNDTIMEO: 0.0, socket.SO_RCVTIMEO: 0.0}
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        if self.is_within_a_host:
            with contextlib.suppress(OSError):  # a kernel without it
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _WITHIN_A_HOST)

    @property
    def is_within_a_host(self) -> bool:
        return bool(self._socket.getpeername()[0] == self._socket.getsockname()[0])

    @property
    def has_ended(self) -> bool:
        """Tell whether the other side has closed the connection; a silent one has not."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, content: bytes | memoryview, deadline: Deadline) -> None:
        view = memoryview(content)
        while view:
            part = view
            sent = self._do(socket.SO_SNDTIMEO, lambda: self._socket.send(part), deadline)  # noqa: B023
            view = view[sent:]

    def send_file(self, descriptor: int, start: int, size_bytes: int, deadline: Deadline) -> None:
        """Send part of a file from the page cache, without a copy in this process."""
        end = start + size_bytes

        def send_part() -> int:
            return os.sendfile(self._socket.fileno(), descriptor, start, min(end - start, _SENDFILE_BYTES))

        while start < end:
            sent = self._do(socket.SO_SNDTIMEO, send_part, deadline)
            if sent == 0:
                raise WeightsError("a file of weights became shorter")
            start += sent

    def receive(self, size_bytes: int, deadline: Deadline) -> bytes:
        """Receive so many bytes; memory is taken as they come, not as they are announced."""
        content = bytearray()
        while (here := len(content)) < size_bytes:
            content += bytes(min(size_bytes - here, max(here, _FIRST_BYTES)))
            with memoryview(content) as view:
                self.receive_into(view[here:], deadline)
        return bytes(content)

    def receive_into(self, target: memoryview, deadline: Deadline) -> None:
        position = 0

        def receive_part() -> int:
            return self._socket.recv_into(target[position:], 0, socket.MSG_WAITALL)

        while position < len(target):
            received = self._do(socket.SO_RCVTIMEO, receive_part, deadline)
            if received == 0:
                raise ConnectionResetError(_CLOSED)
            position += received

    def _do(self, option: int, move: Callable[[], int], deadline: Deadline) -> int:
        """Call `move` until it has moved bytes; returns how many.

        Raises TimeoutError if none could be, and ConnectionResetError once the other side is gone: which of
        three ways the kernel has to say so (an end, a reset, a broken pipe) depends on who was faster.
        """
        wait = deadline.sooner(self._idle_s)
        left_s = wait.remaining_s()
        if not left_s / 2 <= self._timeout_s[option] <= left_s:
            self._set_timeout(option, left_s * 3 / 4)
        while True:
            try:
                return move()
            except BlockingIOError:
                if wait.is_over:
                    raise TimeoutError("timed out: the other side moved no bytes") from None
                self._set_timeout(option, wait.remaining_s())
            except (ConnectionResetError, BrokenPipeError) as error:
                raise ConnectionResetError(_CLOSED) from error

    def _set_timeout(self, option: int, seconds: float) -> None:
        whole = max(1, round(seconds * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(whole, 1_000_000)))
        self._timeout_s[option] = seconds
