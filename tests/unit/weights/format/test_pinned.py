"""A few buffers go round between a device and threads, in order, and no error of a thread is lost."""

import threading

import pytest
import torch

from rl_agent.weights.format import pinned
from rl_agent.weights.format.pinned import PinnedRing, parts

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(pinned, "BUFFER_BYTES", 8)


def test_parts_cover_the_bytes_without_gap_or_overlap():
    assert list(parts(3, 20)) == [(3, 11), (11, 19), (19, 20)]
    assert list(parts(5, 5)) == []


def test_buffers_come_back_in_the_order_in_which_they_were_handed_over():
    done = []
    with PinnedRing(CPU, threads=2) as ring:
        for number in range(20):
            buffer = ring.take()
            buffer.fill_(number)
            ring.hand_over(buffer, lambda content: done.append(int(content[0])))
    assert sorted(done) == list(range(20)) and ring.buffers == 4


def test_an_error_of_a_thread_surfaces_where_its_buffer_is_taken():
    def broken(_):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), PinnedRing(CPU, threads=1) as ring:
        ring.hand_over(ring.take(), broken)


def test_at_the_end_no_thread_is_left_also_after_an_error():
    with pytest.raises(ValueError, match="mine"), PinnedRing(CPU, threads=1) as ring:
        ring.hand_over(ring.take(), lambda content: None)
        raise ValueError("mine")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pinned")]
