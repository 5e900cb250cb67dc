"""An announced length takes no memory; bytes that came do."""

import socket
import struct
import threading

import numpy as np
import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.connection.socket_io import TimedSocket
from rl_agent.weights.format.codec import MAX_BLOCK_BYTES
from rl_agent.weights.format.delta import encode_delta
from rl_agent.weights.format.manifest import Blob, TensorSpec, lay_out
from tests.unit.weights.weight_versions import in_a_mebibyte, with_delta

HEAD = struct.Struct("<4sIII")


@pytest.fixture
def ends():
    listener = socket.create_server(("127.0.0.1", 0))
    here = socket.create_connection(listener.getsockname())
    there, _ = listener.accept()
    with listener, here, there:
        yield here, there


@pytest.mark.parametrize("size_bytes", [0, 1, 65_536, 65_537, 3_000_000])
def test_received_bytes_arrive_whole(ends, size_bytes):
    here, there = ends
    content = bytes(np.arange(size_bytes, dtype=np.uint8))
    sending = threading.Thread(target=here.sendall, args=(content,))
    sending.start()
    assert TimedSocket(there, 5.0).receive(size_bytes, Deadline.after(5)) == content
    sending.join()


def test_a_length_that_was_only_announced_takes_no_memory(ends):
    here, there = ends
    here.sendall(b"x" * 1000)
    here.shutdown(socket.SHUT_WR)
    with in_a_mebibyte(), pytest.raises(ConnectionResetError):
        TimedSocket(there, 5.0).receive(2**30, Deadline.after(5))


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_lost_peer_is_reported_in_the_same_words_however_it_left(ends, is_reset):
    here, there = ends
    gone = TimedSocket(there, 5.0)
    if is_reset:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    here.close()
    with pytest.raises(ConnectionResetError, match="the other side closed the connection"):
        gone.receive(1, Deadline.after(5))
    with pytest.raises(ConnectionResetError, match="the other side closed the connection"):
        while True:
            gone.send(bytes(2**20), Deadline.after(5))


def test_a_buffer_for_pieces_is_no_longer_than_the_blob():
    assert Blob(1000, 2**30, ()).longest_piece == 1000
    assert Blob(1000, 64, ()).longest_piece == 64


LAYOUT = lay_out([TensorSpec("a", "BF16", (500,)), TensorSpec("b", "U8", (300,))])


def delta(block_bytes: int, count: int | None = None) -> tuple[bytes, memoryview, bytes]:
    """A difference whose header says so, its base, and what it gives."""
    base = np.zeros(LAYOUT.size_bytes, np.uint8)
    new = base.copy()
    new[3] = 7
    encoded = encode_delta(
        base.data, new.data, LAYOUT.tensors, block_bytes=4096, threads=1, limit_bytes=10**6
    )
    magic, version, _, blocks = HEAD.unpack(encoded[: HEAD.size])
    head = HEAD.pack(magic, version, block_bytes, blocks if count is None else count)
    return head + encoded[HEAD.size :], base.data, new.tobytes()


def test_a_block_takes_as_much_memory_as_there_is_of_it():
    encoded, base, new = delta(MAX_BLOCK_BYTES)
    with in_a_mebibyte():
        assert with_delta(encoded, base, LAYOUT.tensors) == new


@pytest.mark.parametrize(
    ("block_bytes", "count", "message"),
    [
        (MAX_BLOCK_BYTES + 64, None, "not in a format"),
        (64, None, "another layout"),
        (64, 2**32 - 1, "another layout"),
        (4096, 2**32 - 1, "another layout"),
    ],
)
def test_a_header_that_does_not_fit_costs_nothing(block_bytes, count, message):
    encoded, base, _ = delta(block_bytes, count)
    with in_a_mebibyte(), pytest.raises(WeightsError, match=message):
        with_delta(encoded, base, LAYOUT.tensors)
