"""An announced length takes no memory; bytes that came do."""

import socket
import struct
import threading
import tracemalloc

import numpy as np
import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.connection.socket_io import TimedSocket
from rl_agent.weights.format.codec import MAX_BLOCK_BYTES
from rl_agent.weights.format.delta import decode_delta, encode_delta
from rl_agent.weights.format.manifest import Blob, TensorSpec, lay_out

HEAD = struct.Struct("<4sIII")


@pytest.fixture
def ends():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    with listener, one, other:
        yield one, other


@pytest.mark.parametrize("size_bytes", [0, 1, 65_536, 65_537, 3_000_000])
def test_received_bytes_arrive_whole(ends, size_bytes):
    one, other = ends
    content = bytes(np.arange(size_bytes, dtype=np.uint8))
    sending = threading.Thread(target=one.sendall, args=(content,))
    sending.start()
    assert TimedSocket(other, 5.0).receive(size_bytes, Deadline.after(5)) == content
    sending.join()


def test_a_length_that_was_only_announced_takes_no_memory(ends):
    one, other = ends
    one.sendall(b"x" * 1000)
    one.shutdown(socket.SHUT_WR)
    tracemalloc.start()
    try:
        with pytest.raises(ConnectionResetError):
            TimedSocket(other, 5.0).receive(2**30, Deadline.after(5))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def end_plainly(one: socket.socket) -> None:
    one.close()


def end_by_a_reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


@pytest.mark.parametrize("end", [end_plainly, end_by_a_reset])
def test_a_lost_peer_is_reported_in_the_same_words_however_it_left(ends, end):
    one, other = ends
    gone = TimedSocket(other, 5.0)
    end(one)
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


def decoded(encoded: bytes, base: memoryview) -> bytes:
    out = bytearray(len(base))

    def write(start: int, content: memoryview) -> None:
        out[start : start + len(content)] = content

    decode_delta(memoryview(encoded), base, write, LAYOUT.tensors, threads=2)
    return bytes(out)


def test_a_block_takes_as_much_memory_as_there_is_of_it():
    encoded, base, new = delta(MAX_BLOCK_BYTES)
    tracemalloc.start()
    try:
        assert decoded(encoded, base) == new
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


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
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match=message):
            decoded(encoded, base)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
