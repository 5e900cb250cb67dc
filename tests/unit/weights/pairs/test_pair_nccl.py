"""A pair asks NCCL in an order, and reads its answers; GPUs and NCCL are simulated."""

import contextlib
import enum
import sys
from dataclasses import dataclass, field

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.pairs.pair_nccl import NcclPair, NcclPairs
from rl_agent.weights.pairs.pairs import RECEIVER, SENDER, WaitLimit

SIZE = 64
NEVER = 10**9


class Result(enum.IntEnum):
    """Results as in `nccl.bindings`."""

    Success = 0
    RemoteError = 6
    InProgress = 7


class Memory:
    """Host and device memory of one side; copies run when the stream comes to them."""

    def __init__(self, device):
        self.stream = device
        self.host, self.on_device = bytearray(SIZE), bytearray(SIZE)
        self.steps: list[str] = []

    @contextlib.contextmanager
    def current(self):
        yield

    def memory(self, size_bytes):
        return memoryview(self.host)[:size_bytes]

    def on_gpu(self, size_bytes):
        return memoryview(self.on_device)[:size_bytes]

    def upload(self, size_bytes):
        self.steps.append("upload")
        self.on_device[:size_bytes] = self.host[:size_bytes]

    def download(self, size_bytes):
        self.steps.append("download")
        self.host[:size_bytes] = self.on_device[:size_bytes]

    def mark(self):
        self.steps.append("mark")
        return lambda: True


@dataclass
class Fake:
    """A communicator: complete after some looks; then what was sent is where the receiver wants it."""

    looks: int = 2
    """Looks until a call is complete."""
    fails_after: int = NEVER
    """Calls, of joining, sending and receiving, that go well."""
    wire: list[bytes] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    left: int = 0
    target: memoryview | None = None

    def _call(self, name):
        self.calls.append(name)
        self.left = self.looks

    def join(self):
        self._call("join")
        return self

    def send(self, sendbuf, peer, *, stream):
        assert peer == RECEIVER
        self.wire.append(bytes(sendbuf))
        self._call("send")

    def recv(self, recvbuf, peer, *, stream):
        assert peer == SENDER
        self.target = recvbuf
        self._call("receive")

    def get_async_error(self):
        if len(self.calls) > self.fails_after:
            return Result.RemoteError
        self.left -= 1
        if self.left <= 0 and self.target is not None and self.wire:
            self.target[:] = self.wire.pop(0)
        return Result.Success if self.left <= 0 else Result.InProgress

    def abort(self):
        self.calls.append("abort")


def until(seconds=60.0, is_cancelled=lambda: False):
    return WaitLimit(Deadline.after(seconds), is_cancelled)


def pair(library, stage, rank=SENDER, end=None):
    return NcclPair(library.join, stage, rank, end or until())


def test_a_piece_goes_up_across_and_down_in_this_order():
    wire = []
    sending, receiving = Fake(wire=wire), Fake(wire=wire)
    here, there = Memory(1), Memory(2)
    sender, receiver = pair(sending, here), pair(receiving, there, RECEIVER)
    sender.memory(SIZE)[:] = bytes(range(SIZE))
    sender.send(SIZE, until())
    receiver.receive(SIZE, until())
    assert bytes(receiver.memory(SIZE)) == bytes(range(SIZE)), "it was copied before it had come"
    assert (here.steps, there.steps) == (["upload", "mark"], ["download", "mark"])


@pytest.mark.parametrize("move", ["send", "receive"])
def test_a_peer_that_died_is_an_error_of_its_pair_which_is_then_aborted(move):
    library = Fake(fails_after=1)
    broken = pair(library, Memory(1), SENDER if move == "send" else RECEIVER)
    with pytest.raises(OSError, match="RemoteError"):
        getattr(broken, move)(SIZE, until())
    broken.close()
    broken.close()
    assert library.calls == ["join", move, "abort"]


@pytest.mark.parametrize(
    ("end", "error"),
    [(until(0.01), TimeoutError), (until(is_cancelled=lambda: True), ConnectionAbortedError)],
    ids=["deadline", "cancelled"],
)
def test_an_absent_or_idle_peer_is_awaited_no_longer_than_the_deadline(end, error):
    library = Fake(looks=NEVER)
    with pytest.raises(error):
        pair(library, Memory(1), end=end)
    assert library.calls == ["join", "abort"]
    library = Fake()
    idle = pair(library, Memory(1))
    library.looks = NEVER
    with pytest.raises(error):
        idle.send(SIZE, end)
    idle.close()
    assert library.calls == ["join", "send", "abort"]


def test_a_gpu_without_memory_is_an_error_of_the_pair_alone():
    class Full(Memory):
        def memory(self, size_bytes):
            raise RuntimeError("CUDA out of memory.\nTried to allocate")

    full = pair(Fake(), Full(1))
    with pytest.raises(ConnectionAbortedError, match="out of memory"):
        full.memory(SIZE)


def test_errors_of_the_bindings_are_the_pairs_which_is_aborted_on_close():
    class Broken(Fake):
        def send(self, sendbuf, peer, *, stream):
            raise Exception("NCCL_ERROR_INVALID_USAGE\nmore of it")  # as NCCLError, which is no RuntimeError

    library = Broken()
    broken = pair(library, Memory(1))
    with pytest.raises(ConnectionAbortedError, match="INVALID_USAGE more of it"):
        broken.send(SIZE, until())
    broken.close()
    assert library.calls == ["join", "abort"]
    with pytest.raises(ConnectionAbortedError, match="closed"):
        broken.send(SIZE, until())


def test_a_host_without_the_bindings_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "nccl", None)
    with pytest.raises(WeightsError, match=r"nccl4py cannot be imported: .*install requirements/gpu\.txt"):
        NcclPairs()
