"""Authenticates one connection between two hosts that know the same token.

    client  "RLWEIGH2"  32 random bytes                                connect
    server  32 random bytes  HMAC(token, "server" client's server's)   a server without the token is left
    client  HMAC(token, "client" client's server's)                    a client without it is cut off
    then    frames: length (4 bytes)  content

Raw bytes of pieces travel between frames. What is changed on the way costs a try: a receiver checks manifests
and pieces against what was announced. Nothing is encrypted.
"""

import hmac
import secrets
import socket
import struct
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.connection.socket_io import TimedSocket

MAGIC = b"RLWEIGH2"
NONCE_BYTES = 32
MAX_MESSAGE_BYTES = 2**20
"""The largest size of a question or an answer; a manifest may be longer."""
HANDSHAKE_S = 10.0
"""The time for a connection and its handshake: where packets are dropped nothing ever answers."""
_LENGTH = struct.Struct("<I")
_HASH = "sha256"
_HASH_BYTES = 32


class Channel:
    """A connected socket on which both sides have shown that they know the token."""

    def __init__(self, wire: TimedSocket) -> None:
        self.wire = wire
        """The wire for raw bytes between frames."""

    def send(self, content: bytes, deadline: Deadline) -> None:
        self.wire.send(_LENGTH.pack(len(content)) + content, deadline)

    def receive(self, deadline: Deadline, *, most_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
        """Receive one frame. Raises WeightsError if it is too long."""
        (length,) = _LENGTH.unpack(self.wire.receive(_LENGTH.size, deadline))
        if length > most_bytes:
            raise WeightsError(f"a frame of {length} bytes is longer than the {most_bytes} that it may be")
        return self.wire.receive(length, deadline)


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
    return Channel(wire)


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
    return Channel(wire)


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
