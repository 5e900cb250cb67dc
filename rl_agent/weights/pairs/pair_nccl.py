"""Transfers pieces from GPU to GPU over NCCL, by the fastest link that it finds between two hosts.

    sender    host memory ─► its GPU ─► send            the stream and the memory are the pair's own
    receiver  receive ─► its GPU ─► host memory         where it is verified and kept, like any piece

NCCL is called through NVIDIA's own bindings, `nccl4py` (in requirements/gpu.txt). The alternatives do not
fit: the watchdog of torch's process groups ends the process when a peer dies or is late, and a trainer must
outlive its engines; vLLM's `pynccl` has blocking communicators only, so a peer that never joins would block
for ever, and its `StatelessProcessGroup`, on which vLLM's weight transfer is built, exchanges pickles over a
store that asks for no token.

Communicators are non-blocking here, so that each step is polled until a deadline, and are always ended by
`abort`, which does not wait for the other side. Both sides need the same version of NCCL, on different GPUs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rl_agent.errors import WeightsError
from rl_agent.weights.pairs.pairs import WaitLimit
from rl_agent.weights.sources.source import reason_of

if TYPE_CHECKING:
    import torch

_ID_BYTES = 128
_SUCCESS, _IN_PROGRESS = 0, 7
"""The values of `ncclResult_t` that are not errors."""
_MOST_CTAS = 4
"""Blocks of a GPU's processors that a transfer takes from training or generation."""
_GPU = 0
"""The first visible one: a trainer's rank 0 computes there, and the first worker of an engine."""


class Communicator(Protocol):
    """The part of `nccl.core.Communicator` that a pair needs: calls that return before they are complete."""

    def send(self, sendbuf: Any, peer: int, *, stream: int) -> None: ...

    def recv(self, recvbuf: Any, peer: int, *, stream: int) -> None: ...

    def get_async_error(self) -> int:
        """Return success once the call before is complete, else in progress, or what has failed."""

    def abort(self) -> None: ...


class GpuStage:
    """A pair's memory, here and on the first GPU that this process sees, and the order of work there."""

    def __init__(self) -> None:
        import torch

        self._stream = torch.cuda.Stream(device=_GPU, priority=-1)
        self._host = torch.empty(0, dtype=torch.uint8)
        self._device = self._host

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let the calling thread work on that GPU and stream."""
        import torch

        with torch.cuda.device(_GPU), torch.cuda.stream(self._stream):
            yield

    def memory(self, size_bytes: int) -> memoryview:
        import torch

        if self._host.numel() < size_bytes:
            self._host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
            with self.current():  # of this stream, so that no other is given it while this one may use it
                self._device = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{_GPU}")
        flat: Any = self._host[:size_bytes].numpy()
        return memoryview(flat)

    def on_gpu(self, size_bytes: int) -> "torch.Tensor":
        """Return the tensor on the GPU that belongs to `memory`."""
        return self._device[:size_bytes]

    def upload(self, size_bytes: int) -> None:
        self._device[:size_bytes].copy_(self._host[:size_bytes], non_blocking=True)

    def download(self, size_bytes: int) -> None:
        self._host[:size_bytes].copy_(self._device[:size_bytes], non_blocking=True)

    def mark(self) -> Callable[[], bool]:
        """Return what tells whether the GPU has done all that was given to it before."""
        has_happened: Callable[[], bool] = self._stream.record_event().query
        return has_happened


class NcclPairs:
    """Makes pairs over NCCL; an invitation is the unique id of a communicator of two ranks."""

    def __init__(self) -> None:
        """Raises WeightsError if there are no bindings, no NCCL or no GPU."""
        import torch  # has loaded the NCCL that it links, which the bindings then use

        if not torch.cuda.is_available():
            raise WeightsError("transport=nccl moves weights between GPUs, and no GPU is visible here")
        try:
            from nccl import core
        except ImportError as error:
            raise WeightsError(
                f"transport=nccl: nccl4py cannot be imported: {error}; install requirements/gpu.txt, or leave"
                " weights.transport at tcp"
            ) from error
        library = core.get_version().libnccl
        if library is None:
            raise WeightsError("transport=nccl: nccl4py finds no libnccl.so.2; torch for CUDA brings one")
        self._nccl: Any = core
        self.kind = f"nccl {library.version}"

    def invite(self) -> str:
        return bytes(self._nccl.get_unique_id()).hex()

    def join(self, invitation: str, rank: int, until: WaitLimit) -> "NcclPair":
        try:
            identity = bytes.fromhex(invitation)
        except ValueError:
            identity = b""
        if len(identity) != _ID_BYTES:
            raise ConnectionAbortedError(
                f"invalid invitation to a pair: not {_ID_BYTES} bytes in hexadecimal"
            )

        def connect() -> Communicator:
            config = self._nccl.NCCLConfig(blocking=False, max_ctas=_MOST_CTAS)
            unique_id = self._nccl.UniqueId.from_bytes(identity)
            communicator: Communicator = self._nccl.Communicator.init(2, rank, unique_id, config)
            return communicator

        with _errors_of_pair():
            return NcclPair(connect, GpuStage(), rank, until)


class NcclPair:
    """One of the two ranks. See `Pair`."""

    def __init__(
        self, connect: Callable[[], Communicator], stage: GpuStage, rank: int, until: WaitLimit
    ) -> None:
        self._stage = stage
        self._peer = 1 - rank
        self._communicator: Communicator | None = None
        try:
            with _errors_of_pair(), stage.current():
                self._communicator = connect()
                self._wait_complete(self._communicator, until)
        except BaseException:
            self.close()
            raise

    def memory(self, size_bytes: int) -> memoryview:
        with _errors_of_pair():
            return self._stage.memory(size_bytes)

    def send(self, size_bytes: int, until: WaitLimit) -> None:
        stage = self._stage
        with self._working() as communicator:
            stage.upload(size_bytes)
            communicator.send(stage.on_gpu(size_bytes), self._peer, stream=stage.stream)
            self._wait_complete(communicator, until, stage)

    def receive(self, size_bytes: int, until: WaitLimit) -> None:
        stage = self._stage
        with self._working() as communicator:
            stage.memory(size_bytes)
            communicator.recv(stage.on_gpu(size_bytes), self._peer, stream=stage.stream)
            self._wait_complete(communicator, until)  # only now it is in the stream, before the copy
            stage.download(size_bytes)
            self._wait_complete(communicator, until, stage)

    def close(self) -> None:
        if self._communicator is not None:
            communicator, self._communicator = self._communicator, None
            with _errors_of_pair(), self._stage.current():
                communicator.abort()

    @contextmanager
    def _working(self) -> Iterator[Communicator]:
        if self._communicator is None:
            raise ConnectionAbortedError("nccl: the pair is closed")
        with _errors_of_pair(), self._stage.current():
            yield self._communicator

    def _wait_complete(
        self, communicator: Communicator, until: WaitLimit, stage: GpuStage | None = None
    ) -> None:
        """Wait for the call before and, with `stage`, for all that its GPU was given."""

        def is_complete() -> bool:
            result = communicator.get_async_error()
            if result not in (_SUCCESS, _IN_PROGRESS):
                raise ConnectionResetError(f"nccl: {result!r}")
            return result == _SUCCESS

        until.wait(is_complete)
        if stage is not None:
            is_done = stage.mark()
            # The call's state too: a peer that died shows there, and the GPU would wait for it for ever.
            until.wait(lambda: is_complete() and is_done())


@contextmanager
def _errors_of_pair() -> Iterator[None]:
    """Turn whatever NCCL or CUDA raises, such as no memory left, into an error of this pair alone."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ConnectionAbortedError(f"nccl: {reason_of(error)}") from error
