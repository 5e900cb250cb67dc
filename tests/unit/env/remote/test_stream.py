"""Frames over a stream socket: whole however they are cut; who sends too much or reads nothing is cut off."""

import asyncio
import socket

import pytest

from rl_agent.env.remote import stream as module
from rl_agent.env.remote.stream import FrameStream
from tests.unit.env.remote.pools import until


async def pair():
    """Two ends, what has arrived at each, and the events of their ends."""
    ends = []
    for end in socket.socketpair():
        end.setblocking(False)
        arrived, closed = [], asyncio.Event()
        ends.append((await FrameStream.over(end, arrived.append, closed.set), arrived, closed))
    return ends


async def test_frames_arrive_whole_and_in_order_empty_ones_too():
    (sender, _, _), (other, arrived, closed) = await pair()
    frames = [b"a", b"", b"x" * 300_000, b"last"]
    for frame in frames:
        sender.send(frame)
    await until(lambda: arrived == frames)
    sender.close()
    await until(closed.is_set)
    other.send(b"to nobody")  # does nothing


async def test_frames_of_one_turn_leave_in_one_write_at_its_end():
    (sender, _, _), (_, arrived, _) = await pair()
    writes, write = [], sender._write
    sender._write = lambda content: (writes.append(content), write(content))
    for frame in (b"a", b"", b"last"):
        sender.send_soon(frame)
    assert (writes, sender.release()) == ([], None)
    await until(lambda: arrived == [b"a", b"", b"last"])
    assert len(writes) == 1
    sender.release().close()


@pytest.mark.parametrize("size", [1, 3, 7])
def test_frames_are_read_however_the_bytes_are_cut(size):
    arrived = []
    stream = FrameStream(arrived.append, lambda: None)
    sent = b"".join(len(frame).to_bytes(4, "big") + frame for frame in (b"one", b"", b"three"))
    for at in range(0, len(sent), size):
        stream.data_received(sent[at : at + size])
    assert arrived == [b"one", b"", b"three"]


async def test_a_frame_that_is_too_long_cuts_its_sender_off_before_it_is_read(monkeypatch):
    monkeypatch.setattr(module, "MAX_FRAME_BYTES", 10)
    (sender, _, closed), (_, arrived, _) = await pair()
    sender.send(b"x" * 11)
    await until(closed.is_set)
    assert arrived == []


async def test_a_reader_that_reads_nothing_is_given_up_at_the_limit(monkeypatch):
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 1000)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    closed = asyncio.Event()
    stream = await FrameStream.over(ours, lambda frame: None, closed.set)
    for _ in range(100):
        stream.send(b"x" * 100_000)
    await until(closed.is_set)
    theirs.close()
