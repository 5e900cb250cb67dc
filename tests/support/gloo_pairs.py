"""Pairs over gloo stand in for those over NCCL: without GPUs, and within one host.

The two processes meet through a file whose name cannot be guessed, and gloo listens on loopback alone.
"""

import os
import re
import secrets
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl_agent.weights.pairs.pairs import WaitLimit

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_LOOPBACK = "127.0.0.1"


class GlooPairs:
    kind = "gloo"

    def __init__(self) -> None:
        import torch.distributed  # noqa: F401 - takes seconds, which are not to pass while another waits

    def invite(self) -> str:
        return secrets.token_hex(16)

    def join(self, invitation: str, rank: int, until: WaitLimit) -> "GlooPair":
        if not re.fullmatch("[0-9a-f]{32}", invitation):
            raise ConnectionAbortedError("an invitation to a pair cannot be understood")
        return GlooPair(Path(tempfile.gettempdir(), f"rl-agent-pair-{os.getuid()}-{invitation}"), rank, until)


class GlooPair:
    def __init__(self, path: Path, rank: int, until: WaitLimit) -> None:
        self._path = path
        self._other = 1 - rank
        self._memory: torch.Tensor | None = None
        self._group: Any = None
        self._is_closed = False
        try:
            self._group = _do(lambda timeout: self._join(rank, timeout), until)
        except BaseException:
            self.close()
            raise

    def memory(self, size_bytes: int) -> memoryview:
        flat: Any = self._tensor(size_bytes).numpy()
        return memoryview(flat)

    def send(self, size_bytes: int, until: WaitLimit) -> None:
        group, tensors = self._group, [self._tensor(size_bytes)]  # kept until gloo is done with them
        _do(lambda timeout: group.send(tensors, self._other, 0).wait(timeout), until)

    def receive(self, size_bytes: int, until: WaitLimit) -> None:
        group, tensors = self._group, [self._tensor(size_bytes)]
        _do(lambda timeout: group.recv(tensors, self._other, 0).wait(timeout), until)

    def close(self) -> None:
        self._is_closed = True
        self._group = self._memory = None
        self._path.unlink(missing_ok=True)

    def _join(self, rank: int, timeout: timedelta) -> Any:
        try:
            return _group(self._path, rank, timeout)
        finally:
            if self._is_closed:  # meanwhile; so this may have made the file again
                self._path.unlink(missing_ok=True)

    def _tensor(self, size_bytes: int) -> "torch.Tensor":
        import torch

        if self._memory is None or self._memory.numel() < size_bytes:
            self._memory = torch.empty(size_bytes, dtype=torch.uint8)
        return self._memory[:size_bytes]


def _group(path: Path, rank: int, timeout: timedelta) -> Any:
    from torch.distributed import FileStore, ProcessGroupGloo

    gloo: Any = ProcessGroupGloo  # whose type hints lack what it has
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]
    options._timeout = timeout
    path.touch(mode=0o600)  # else others could read where this process listens
    store = FileStore(str(path), 2)
    store.set_timeout(timeout)
    return gloo(store, rank, 2, options)


def _do(work: Callable[[timedelta], T], until: WaitLimit) -> T:
    """Work in a thread, since gloo can be given a deadline but cannot be interrupted.

    Who leaves early leaves it behind until that deadline; a process ends no sooner, for it ends badly then.
    """
    done = threading.Event()
    results: list[T] = []
    problems: list[RuntimeError] = []
    timeout = timedelta(seconds=until.deadline.remaining_s())

    def run() -> None:
        try:
            results.append(work(timeout))
        except RuntimeError as error:
            problems.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="gloo").start()
    until.wait(done.is_set)
    if problems:
        raise ConnectionResetError(f"gloo fails: {problems[0]}"[:200]) from problems[0]
    return results[0]
