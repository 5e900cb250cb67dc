"""One authenticated connection between two holders of the same token.

    client  "RLWEIGH1"  32 random bytes                                connect
    server  32 random bytes  HMAC(token, "server" client's server's)   a server without the token is left
    client  HMAC(token, "client" client's server's)                    a client without it is cut off
    then    frames: length (4 bytes)  content  MAC (16 bytes)

A frame's MAC covers its direction and number under a key of this connection, so frames cannot be changed,
left out, repeated or sent back. Raw bytes of pieces travel between frames without a MAC: their receiver
checks them against a manifest. Nothing is encrypted.
"""

import hmac
import os
import secrets
import socket
import struct
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.weights.deadline import Deadline

MAGIC = b"RLWEIGH1"
NONCE_BYTES = 32
MAC_BYTES = 16
MAX_FRAME_BYTES = 2**27
HANDSHAKE_S = 10.0
_LENGTH = struct.Struct("<I")
_TIMEVAL = struct.Struct("@ll")
_HASH = "sha256"
_HASH_BYTES = 32
_SENDFILE_BYTES = 2**24


class Channel:
    """A connected socket on which both sides have shown that they know the token."""

    def __init__(self, connection: socket.socket, key: bytes, *, is_server: bool, idle_s: float) -> None:
        self._socket = connection
        self._key = key
        self._directions = (b"s", b"c") if is_server else (b"c", b"s")
        self._sent = self._received = 0
        self._idle_s = idle_s

    def send(self, content: bytes, deadline: Deadline) -> None:
        mac = self._mac(self._directions[0], self._sent, content)
        self._sent += 1
        _send_all(self._socket, _LENGTH.pack(len(content)) + content + mac, deadline, self._idle_s)

    def receive(self, deadline: Deadline) -> bytes:
        """Raises WeightsError if the frame was not written by the other side, in this place."""
        (length,) = _LENGTH.unpack(_receive(self._socket, _LENGTH.size, deadline, self._idle_s))
        if length > MAX_FRAME_BYTES:
            raise WeightsError(f"a frame of {length} bytes is longer than any may be")
        content = _receive(self._socket, length, deadline, self._idle_s)
        mac = _receive(self._socket, MAC_BYTES, deadline, self._idle_s)
        if not hmac.compare_digest(mac, self._mac(self._directions[1], self._received, content)):
            raise WeightsError("a frame was changed on the way")
        self._received += 1
        return content

    @property
    def is_on_this_host(self) -> bool:
        return bool(self._socket.getpeername()[0] == self._socket.getsockname()[0])

    def receive_into(self, target: memoryview, deadline: Deadline) -> None:
        """Raw bytes, as many as `target` holds. They are not verified."""
        _receive_into(self._socket, target, deadline, self._idle_s)

    def send_memory(self, content: memoryview, deadline: Deadline) -> None:
        """Raw bytes. Within a host, where a receiver copies them anyway, cheaper than `send_file`."""
        _send_all(self._socket, content, deadline, self._idle_s)

    def send_file(self, descriptor: int, start: int, size_bytes: int, deadline: Deadline) -> None:
        """Raw bytes of a file, from the page cache to the socket without a copy in this process."""
        end = start + size_bytes
        while start < end:
            _wait_at_most(self._socket, socket.SO_SNDTIMEO, deadline.remaining_s(self._idle_s))
            try:
                sent = os.sendfile(
                    self._socket.fileno(), descriptor, start, min(end - start, _SENDFILE_BYTES)
                )
            except BlockingIOError:
                raise TimeoutError("the receiver took no bytes") from None
            if sent == 0:
                raise WeightsError("a file of weights became shorter")
            start += sent

    def _mac(self, direction: bytes, number: int, content: bytes) -> bytes:
        return hmac.digest(self._key, direction + number.to_bytes(8, "little") + content, _HASH)[:MAC_BYTES]


def connect(
    connection: socket.socket, address: Any, token: bytes, deadline: Deadline, idle_s: float
) -> Channel:
    """Raises WeightsError if the other side does not know `token`, OSError if there is none.

    The socket stays the caller's, who may shut it down from another thread to end any wait.
    """
    connection.settimeout(deadline.remaining_s(idle_s))
    connection.connect(address)
    _set_up(connection)
    deadline = deadline.sooner(HANDSHAKE_S)
    own = secrets.token_bytes(NONCE_BYTES)
    _send_all(connection, MAGIC + own, deadline, idle_s)
    answer = _receive(connection, NONCE_BYTES + _HASH_BYTES, deadline, idle_s)
    nonces = own + answer[:NONCE_BYTES]
    if not hmac.compare_digest(answer[NONCE_BYTES:], _proof(token, b"server", nonces)):
        raise WeightsError("the sender has another token")
    _send_all(connection, _proof(token, b"client", nonces), deadline, idle_s)
    return Channel(connection, _proof(token, b"frames", nonces), is_server=False, idle_s=idle_s)


def accept(connection: socket.socket, token: bytes, idle_s: float) -> Channel:
    """The server's side of `connect`. Raises WeightsError if the client does not know `token`."""
    _set_up(connection)
    deadline = Deadline.after(HANDSHAKE_S)
    hello = _receive(connection, len(MAGIC) + NONCE_BYTES, deadline, idle_s)
    if not hello.startswith(MAGIC):
        raise WeightsError("not a receiver of weights")
    nonces = hello[len(MAGIC) :] + (own := secrets.token_bytes(NONCE_BYTES))
    _send_all(connection, own + _proof(token, b"server", nonces), deadline, idle_s)
    proof = _receive(connection, _HASH_BYTES, deadline, idle_s)
    if not hmac.compare_digest(proof, _proof(token, b"client", nonces)):
        raise WeightsError("the receiver has another token")
    return Channel(connection, _proof(token, b"frames", nonces), is_server=True, idle_s=idle_s)


def _proof(token: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token, role + nonces, _HASH)


def _set_up(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)


def _wait_at_most(connection: socket.socket, option: int, seconds: float) -> None:
    """Let the kernel end a wait: a piece is then one call, where a timeout of Python's takes hundreds."""
    whole = max(1, round(seconds * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(whole, 1_000_000)))


def _send_all(
    connection: socket.socket, content: bytes | memoryview, deadline: Deadline, idle_s: float
) -> None:
    view = memoryview(content)
    while view:
        _wait_at_most(connection, socket.SO_SNDTIMEO, deadline.remaining_s(idle_s))
        try:
            view = view[connection.send(view) :]
        except BlockingIOError:
            raise TimeoutError("timed out: the other side took no bytes") from None


def _receive(connection: socket.socket, size_bytes: int, deadline: Deadline, idle_s: float) -> bytes:
    content = bytearray(size_bytes)
    _receive_into(connection, memoryview(content), deadline, idle_s)
    return bytes(content)


def _receive_into(connection: socket.socket, target: memoryview, deadline: Deadline, idle_s: float) -> None:
    position = 0
    while position < len(target):
        _wait_at_most(connection, socket.SO_RCVTIMEO, deadline.remaining_s(idle_s))
        try:
            received = connection.recv_into(target[position:], 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError("timed out: the other side sent no bytes") from None
        if received == 0:
            raise ConnectionResetError("the other side closed the connection")
        position += received


def shut(connection: socket.socket) -> None:
    """End both directions of a connection, and whatever a thread waits for on it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was not connected, or is no longer
