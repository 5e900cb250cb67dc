"""Authenticates one connection between two hosts that know the same token.

    client  "RLWEIGH1"  32 random bytes                                connect
    server  32 random bytes  HMAC(token, "server" client's server's)   a server without the token is left
    client  HMAC(token, "client" client's server's)                    a client without it is cut off
    then    frames: length (4 bytes)  content  MAC (16 bytes)

A frame's MAC covers its direction and number under a key of this connection, so frames cannot be changed,
left out, repeated or sent back. Raw bytes of pieces travel between frames without a MAC: their receiver
checks them against a manifest. Nothing is encrypted.
"""

import hmac
import secrets
import socket
import struct
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.connection.socket_io import TimedSocket

MAGIC = b"RLWEIGH1"
NONCE_BYTES = 32
MAC_BYTES = 16
MAX_MESSAGE_BYTES = 2**20
"""The largest size of a question or an answer; a manifest may be longer."""
HANDSHAKE_S = 10.0
"""The time for a connection and its handshake: where packets are dropped nothing ever answers."""
_LENGTH = struct.Struct("<I")
_HASH = "sha256"
_HASH_BYTES = 32


class Channel:
    """A connected socket on which both sides have shown that they know the token."""

    def __init__(self, wire: TimedSocket, key: bytes, *, is_server: bool) -> None:
        self.wire = wire
        """The wire for raw bytes between frames. They are not verified."""
        self._key = key
        self._directions = (b"s", b"c") if is_server else (b"c", b"s")
        self._sent = self._received = 0

    def send(self, content: bytes, deadline: Deadline) -> None:
        mac = self._mac(self._directions[0], self._sent, content)
        self._sent += 1
        self.wire.send(_LENGTH.pack(len(content)) + content + mac, deadline)

    def receive(self, deadline: Deadline, *, most_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
        """Receive one frame. Raises WeightsError if it is too long, or its MAC is wrong."""
        (length,) = _LENGTH.unpack(self.wire.receive(_LENGTH.size, deadline))
        if length > most_bytes:
            raise WeightsError(f"a frame of {length} bytes is longer than the {most_bytes} that it may be")
        content, mac = _split(self.wire.receive(length + MAC_BYTES, deadline), length)
        if not hmac.compare_digest(mac, self._mac(self._directions[1], self._received, content)):
            raise WeightsError("a frame was changed on the way")
        self._received += 1
        return content

    def _mac(self, direction: bytes, number: int, content: bytes) -> bytes:
        return hmac.digest(self._key, direction + number.to_bytes(8, "little") + content, _HASH)[:MAC_BYTES]


def connect(
    connection: socket.socket, address: Any, token: bytes, deadline: Deadline, idle_s: float
) -> Channel:
    """Open a channel to a server. Raises WeightsError if it has another token, OSError if there is none.

    The socket stays the caller's, who may shut it down from another thread to end any wait.
    """
    connection.settimeout(deadline.remaining_s(min(idle_s, HANDSHAKE_S)))
    connection.connect(address)
    wire = TimedSocket(connection, idle_s)
    deadline = deadline.sooner(HANDSHAKE_S)
    own = secrets.token_bytes(NONCE_BYTES)
    wire.send(MAGIC + own, deadline)
    theirs, proof = _split(wire.receive(NONCE_BYTES + _HASH_BYTES, deadline), NONCE_BYTES)
    if not hmac.compare_digest(proof, _proof(token, b"server", own + theirs)):
        raise WeightsError("the sender has another token")
    wire.send(_proof(token, b"client", own + theirs), deadline)
    return Channel(wire, _proof(token, b"frames", own + theirs), is_server=False)


def accept(connection: socket.socket, token: bytes, idle_s: float) -> Channel:
    """Open a channel as its server. Raises WeightsError if the client does not know `token`."""
    wire = TimedSocket(connection, idle_s)
    deadline = Deadline.after(HANDSHAKE_S)
    magic, theirs = _split(wire.receive(len(MAGIC) + NONCE_BYTES, deadline), len(MAGIC))
    if magic != MAGIC:
        raise WeightsError("not a receiver of weights")
    nonces = theirs + (own := secrets.token_bytes(NONCE_BYTES))
    wire.send(own + _proof(token, b"server", nonces), deadline)
    if not hmac.compare_digest(wire.receive(_HASH_BYTES, deadline), _proof(token, b"client", nonces)):
        raise WeightsError("the receiver has another token")
    return Channel(wire, _proof(token, b"frames", nonces), is_server=True)


def _split(content: bytes, at: int) -> tuple[bytes, bytes]:
    return content[:at], content[at:]


def _proof(token: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token, role + nonces, _HASH)


def shut(connection: socket.socket) -> None:
    """End both directions of a connection, and whatever a thread waits for on it."""
    try:
        # The socket itself: a TLS connection's own method makes one that is reading read what is encrypted.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # it was not connected, or is no longer
