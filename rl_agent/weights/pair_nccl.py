"""Pairs by NCCL: a piece goes from GPU to GPU, by the fastest way that NCCL finds between their hosts.

    sender    host memory ─► its GPU ─► ncclSend        the stream and the memory are the pair's own
    receiver  ncclRecv ─► its GPU ─► host memory        where it is verified and kept, like any piece

NCCL is called directly rather than through torch.distributed: the watchdog of torch's groups ends the process
when a peer dies or is late, and a trainer must outlive its engines. Communicators are non-blocking, so that
each step can be polled to a deadline, and are always ended by `ncclCommAbort`, which waits for nobody.

Of NCCL it uses what 2.17 has and later ones keep. Both sides need the same version, on different GPUs.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from rl_agent.errors import WeightsError
from rl_agent.weights.pairs import Until

_ID_BYTES = 128
_SUCCESS, _IN_PROGRESS = 0, 7
_UINT8 = 1
_UNDEFINED = -(2**31)
_MAGIC = 0xCAFEBEEF
_CONFIG_VERSION = 21700
_MOST_CTAS = 4
"""Blocks of a GPU's processors that a transfer takes from training or generation."""
_GPU = 0
"""The first visible one: a trainer's rank 0 computes there, and the first worker of an engine."""


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


class _Config(ctypes.Structure):
    """`ncclConfig_t` as of 2.17; its version tells later ones which fields there are."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


Comm = Any
"""A pointer of NCCL's."""


class Library(Protocol):
    """What a pair needs of NCCL; a stand-in for tests has the same."""

    def join(self, identity: bytes, rank: int) -> Comm: ...

    def send(self, comm: Comm, address: int, size_bytes: int, peer: int, stream: int) -> None: ...

    def receive(self, comm: Comm, address: int, size_bytes: int, peer: int, stream: int) -> None: ...

    def is_ready(self, comm: Comm) -> bool:
        """Whether the call before has come to its end. Raises OSError if it, or the peer, has failed."""

    def abort(self, comm: Comm) -> None: ...


class Stage(Protocol):
    """A pair's memory, here and on a GPU, and the order of work there."""

    @property
    def address(self) -> int:
        """Of the memory on the GPU."""

    @property
    def stream(self) -> int: ...

    def current(self) -> AbstractContextManager[None]:
        """Meanwhile the calling thread works on that GPU."""

    def memory(self, size_bytes: int) -> memoryview: ...

    def upload(self, size_bytes: int) -> None: ...

    def download(self, size_bytes: int) -> None: ...

    def mark(self) -> Callable[[], bool]:
        """Whether the GPU has done all that was given to it before."""


class NcclLibrary:
    """Calls return at once; `is_ready` says when they have come to their end."""

    def __init__(self) -> None:
        """Raises WeightsError if there is no NCCL, or no GPU."""
        import torch  # has loaded the NCCL that it links, which is then the one that is found

        if not torch.cuda.is_available():
            raise WeightsError("nccl moves weights between GPUs, and no GPU is visible here")
        try:
            self._nccl = ctypes.CDLL("libnccl.so.2")
            self._declare()
            number = ctypes.c_int()
            self._check(self._nccl.ncclGetVersion(ctypes.byref(number)))
        except (OSError, AttributeError) as error:  # none, an old one, or one that does not start
            raise WeightsError(f"nccl cannot be used: {error}") from error
        self.version = number.value

    def _declare(self) -> None:
        pointer = ctypes.POINTER
        moves = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        signatures: dict[str, list[Any]] = {
            "ncclGetVersion": [pointer(ctypes.c_int)],
            "ncclGetUniqueId": [pointer(_Id)],
            "ncclCommInitRankConfig": [
                pointer(ctypes.c_void_p),
                ctypes.c_int,
                _Id,
                ctypes.c_int,
                pointer(_Config),
            ],
            "ncclSend": moves,
            "ncclRecv": moves,
            "ncclCommGetAsyncError": [ctypes.c_void_p, pointer(ctypes.c_int)],
            "ncclCommAbort": [ctypes.c_void_p],
        }
        for name, types in signatures.items():
            getattr(self._nccl, name).argtypes = types
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p

    def new_identity(self) -> bytes:
        identity = _Id()
        self._check(self._nccl.ncclGetUniqueId(ctypes.byref(identity)))
        return bytes(identity)

    def join(self, identity: bytes, rank: int) -> Comm:
        comm = ctypes.c_void_p()
        config = _Config(
            size=ctypes.sizeof(_Config),
            magic=_MAGIC,
            version=_CONFIG_VERSION,
            blocking=0,
            cga_cluster_size=_UNDEFINED,
            min_ctas=_UNDEFINED,
            max_ctas=_MOST_CTAS,
            net_name=None,
            split_share=_UNDEFINED,
        )
        whom = _Id.from_buffer_copy(identity)
        self._check(
            self._nccl.ncclCommInitRankConfig(ctypes.byref(comm), 2, whom, rank, ctypes.byref(config))
        )
        return comm

    def send(self, comm: Comm, address: int, size_bytes: int, peer: int, stream: int) -> None:
        self._check(self._nccl.ncclSend(address, size_bytes, _UINT8, peer, comm, stream))

    def receive(self, comm: Comm, address: int, size_bytes: int, peer: int, stream: int) -> None:
        self._check(self._nccl.ncclRecv(address, size_bytes, _UINT8, peer, comm, stream))

    def is_ready(self, comm: Comm) -> bool:
        state = ctypes.c_int()
        self._check(self._nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
        self._check(state.value)
        return state.value == _SUCCESS

    def abort(self, comm: Comm) -> None:
        self._nccl.ncclCommAbort(comm)

    def _check(self, result: int) -> None:
        if result not in (_SUCCESS, _IN_PROGRESS):
            raise ConnectionResetError(f"nccl fails: {self._nccl.ncclGetErrorString(result).decode()}")


class GpuStage:
    def __init__(self) -> None:
        import torch

        self._stream = torch.cuda.Stream(device=_GPU, priority=-1)
        self._host = torch.empty(0, dtype=torch.uint8)
        self._device = self._host

    @property
    def address(self) -> int:
        return self._device.data_ptr()

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream)

    @contextmanager
    def current(self) -> Iterator[None]:
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

    def upload(self, size_bytes: int) -> None:
        self._device[:size_bytes].copy_(self._host[:size_bytes], non_blocking=True)

    def download(self, size_bytes: int) -> None:
        self._host[:size_bytes].copy_(self._device[:size_bytes], non_blocking=True)

    def mark(self) -> Callable[[], bool]:
        return self._stream.record_event().query


class NcclPairs:
    def __init__(self) -> None:
        """Raises WeightsError if there is no NCCL, or no GPU."""
        self._library = NcclLibrary()

    @property
    def kind(self) -> str:
        return f"nccl {self._library.version}"

    def invite(self) -> str:
        return self._library.new_identity().hex()

    def join(self, invitation: str, rank: int, until: Until) -> "NcclPair":
        try:
            identity = bytes.fromhex(invitation)
        except ValueError:
            identity = b""
        if len(identity) != _ID_BYTES:
            raise ConnectionAbortedError("an invitation to a pair cannot be understood")
        with _cuda_errors():
            return NcclPair(self._library, GpuStage(), identity, rank, until)


class NcclPair:
    def __init__(self, library: Library, stage: Stage, identity: bytes, rank: int, until: Until) -> None:
        self._library = library
        self._stage = stage
        self._peer = 1 - rank
        self._comm: Comm = None
        with stage.current():
            self._comm = library.join(identity, rank)
            try:
                self._wait_ready(until)
            except BaseException:
                self.close()
                raise

    def memory(self, size_bytes: int) -> memoryview:
        with _cuda_errors():
            return self._stage.memory(size_bytes)

    def send(self, size_bytes: int, until: Until) -> None:
        stage = self._stage
        with _cuda_errors(), stage.current():
            stage.upload(size_bytes)
            self._library.send(self._comm, stage.address, size_bytes, self._peer, stage.stream)
            self._wait_done(until)

    def receive(self, size_bytes: int, until: Until) -> None:
        stage = self._stage
        with _cuda_errors(), stage.current():
            stage.memory(size_bytes)
            self._library.receive(self._comm, stage.address, size_bytes, self._peer, stage.stream)
            self._wait_ready(until)  # only now it is in the stream, where the copy is to follow it
            stage.download(size_bytes)
            self._wait_done(until)

    def close(self) -> None:
        if self._comm is not None:
            comm, self._comm = self._comm, None
            with _cuda_errors(), self._stage.current():
                self._library.abort(comm)

    def _wait_ready(self, until: Until) -> None:
        until.wait(lambda: self._library.is_ready(self._comm))

    def _wait_done(self, until: Until) -> None:
        self._wait_ready(until)
        is_done = self._stage.mark()
        # Asked for errors as well: a peer that died says so there, and the GPU would wait for it for ever.
        until.wait(lambda: self._library.is_ready(self._comm) and is_done())


@contextmanager
def _cuda_errors() -> Iterator[None]:
    """Such as no memory left: an error of this pair, and not of the process."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionAbortedError(f"nccl fails: {str(error).splitlines()[0]}") from error
