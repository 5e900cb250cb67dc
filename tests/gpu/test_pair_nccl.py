"""Pairs over the real NCCL: one process a GPU, joined by the invitation alone, as two hosts are."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest
import torch

from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.pairs.pair_nccl import NcclPairs
from rl_agent.weights.pairs.pairs import RECEIVER, SENDER, WaitLimit

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

JOIN_S = 60.0
SIZES = (2**26, 3, 2**20 + 1)
needs_two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="a pair needs two GPUs: NCCL refuses two ranks on one"
)


def until(seconds: float = JOIN_S) -> WaitLimit:
    return WaitLimit(Deadline.after(seconds), lambda: False)


def piece(number: int, size_bytes: int) -> bytes:
    return (bytes([number]) + bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]


def send(pipe: Connection, pieces: int) -> None:
    """The sender's process: it invites, joins, and sends as many of the pieces; then it waits to be ended."""
    pairs = NcclPairs()
    invitation = pairs.invite()
    pipe.send((pairs.kind, invitation))
    pair = pairs.join(invitation, SENDER, until())
    for number, size_bytes in enumerate(SIZES[:pieces]):
        pair.memory(size_bytes)[:] = piece(number, size_bytes)
        pair.send(size_bytes, until())
    pipe.send("sent")
    pipe.recv()
    pair.close()


@contextmanager
def sender(pieces: int) -> Iterator[tuple[multiprocessing.Process, Connection]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    try:
        process = context.Process(target=send, args=(there, pieces))
        process.start()
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    try:
        yield process, here
    finally:
        process.kill()
        process.join()


@needs_two_gpus
def test_pieces_of_any_size_arrive_as_they_were_sent_and_both_sides_leave():
    pairs = NcclPairs()
    with sender(len(SIZES)) as (process, pipe):
        kind, invitation = pipe.recv()
        assert kind == pairs.kind
        pair = pairs.join(invitation, RECEIVER, until())
        for number, size_bytes in enumerate(SIZES):
            pair.receive(size_bytes, until())
            assert bytes(pair.memory(size_bytes)) == piece(number, size_bytes)
        assert pipe.recv() == "sent"
        pair.close()
        pipe.send("leave")
        process.join(30)
        assert process.exitcode == 0


@needs_two_gpus
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_sender_is_awaited_until_the_deadline_at_most(sign):
    pairs = NcclPairs()
    with sender(1) as (process, pipe):
        _, invitation = pipe.recv()
        pair = pairs.join(invitation, RECEIVER, until())
        pair.receive(SIZES[0], until())
        assert pipe.recv() == "sent"
        assert process.pid is not None
        os.kill(process.pid, sign)
        began = time.monotonic()
        with pytest.raises(OSError):
            pair.receive(SIZES[1], until(3.0))
        pair.close()
        assert time.monotonic() - began < 20
    assert float(torch.ones(3, device="cuda").sum()) == 3, "the process goes on with its GPU"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL needs a GPU")
def test_an_unanswered_invitation_ends_at_the_deadline_and_another_works():
    pairs = NcclPairs()
    for rank in (SENDER, RECEIVER):
        began = time.monotonic()
        with pytest.raises(OSError):
            pairs.join(pairs.invite(), rank, until(2.0))
        assert time.monotonic() - began < 20
