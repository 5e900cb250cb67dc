"""Scores answers in child processes, so that a verifier that hangs cannot hang the rollout.

    score ─► wait for a worker ─► send, receive ─► give the worker back
                 │ none idle and fewer than `size`        │ deadline, cancellation or end of file
                 └► start one, wait until ready           └► kill the worker; the next caller starts another

A pool belongs to the event loop on which it was first used. `close_pool` ends its workers; they also end with
a parent that dies without closing (see `verifier_worker`).
"""

import asyncio
import atexit
import json
import os
import socket
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal, EnvironmentUnavailable
from rl_agent.http.tokens import secret_variables
from rl_agent.system.off_loop import off_loop

_START_TIMEOUT_S = 120.0
_MAX_REPLY_BYTES = 1 << 16
_STDERR = 2


class VerifierTimeout(Exception):
    """The answer could not be verified in time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: socket.socket

    async def ask(self, question: bytes) -> dict[str, Any]:
        """Send one line and return the reply to it."""
        await asyncio.get_running_loop().sock_sendall(self.connection, question)
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        """Receive one line. Raises EOFError if the worker died."""
        loop = asyncio.get_running_loop()
        line = b""
        while not line.endswith(b"\n"):
            part = await loop.sock_recv(self.connection, _MAX_REPLY_BYTES)
            if not part:
                raise EOFError
            line += part
        reply: dict[str, Any] = json.loads(line)
        return reply

    def kill(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


class VerifierPool:
    """A pool of at most `size` workers of one kind, started when they are needed."""

    def __init__(self, kind: str, size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._kind = kind
        self._free_places = asyncio.Semaphore(size)
        self._idle: deque[_Worker] = deque()
        self._busy: set[_Worker] = set()
        self._has_started = False

    async def score(self, request: dict[str, Any], timeout_s: float) -> float:
        """Score one answer; `timeout_s` counts from when a worker is free for it.

        Raises VerifierTimeout, EnvironmentFailure where the worker is broken (a refusal: the task), and
        EnvironmentUnavailable if the first worker cannot be started at all.
        """
        size = sum(len(part) for part in request.values() if isinstance(part, str))
        question = await off_loop(size, _line, request)
        async with self._free_places:
            worker = await self._take()
            try:
                async with asyncio.timeout(timeout_s):
                    reply = await worker.ask(question)
            except TimeoutError:
                raise VerifierTimeout(f"no verdict within {timeout_s:g} s") from None
            except (EOFError, OSError) as error:
                raise EnvironmentFailure(f"the {self._kind} verifier died over an answer") from error
            else:
                self._busy.remove(worker)
                self._idle.append(worker)
            finally:
                if worker in self._busy:  # in the middle of something
                    self._end(worker)
        if "error" in reply:
            raise EnvironmentRefusal(f"the {self._kind} verifier cannot score this task: {reply['error']}")
        return float(reply["score"])

    def close(self) -> None:
        """End all workers at once, busy ones too; some idle ones may be kept for the next pool."""
        kept = _kept.setdefault(self._kind, deque())
        while self._idle and len(kept) < _kept_workers:
            kept.append(self._idle.pop())
        for worker in (*self._idle, *self._busy):
            worker.kill()
        self._idle.clear()
        self._busy.clear()

    async def _take(self) -> _Worker:
        if self._idle:
            worker = self._idle.popleft()
            self._busy.add(worker)
            return worker
        if (kept := _take_kept(self._kind)) is not None:
            self._busy.add(kept)
            self._has_started = True
            return kept
        worker = _start(self._kind)
        self._busy.add(worker)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await worker.receive()
        except BaseException as error:
            self._end(worker)
            if isinstance(error, EOFError) and not self._has_started:
                raise EnvironmentUnavailable(
                    f"the {self._kind} verifier does not start; the lines above say why. Install"
                    " the packages that it needs, or use tasks of another environment"
                ) from error
            if isinstance(error, EOFError | OSError | TimeoutError):
                raise EnvironmentFailure(f"the {self._kind} verifier does not start: {error!r}") from error
            raise
        self._has_started = True
        return worker

    def _end(self, worker: _Worker) -> None:
        self._busy.discard(worker)
        worker.kill()


def _line(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def _start(kind: str) -> _Worker:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    secrets = secret_variables(os.environ)  # of no use to what reads a model's words
    inherited = {name: value for name, value in os.environ.items() if name not in secrets}
    single_threaded = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rl_agent.env.verifier_worker", kind, str(os.getpid())],
            stdin=theirs.fileno(),
            stdout=_STDERR,  # stdout of a verb is for its one line
            env=inherited | single_threaded,
        )
    return _Worker(process, ours)


_pools: dict[str, VerifierPool] = {}
_kept: dict[str, deque[_Worker]] = {}
_kept_workers = 0


def keep_workers(count: int) -> None:
    """Keep up to `count` idle workers of a kind for the next pool, which saves half a second of CPU each."""
    global _kept_workers
    _kept_workers = count


def _take_kept(kind: str) -> _Worker | None:
    """Take a kept worker that is still alive."""
    kept = _kept.get(kind)
    while kept:
        worker = kept.pop()
        if worker.process.poll() is None:
            return worker
        worker.kill()
    return None


def shared_pool(kind: str, size: int) -> VerifierPool:
    """Return the pool that all environments of `kind` on this event loop share."""
    pool = _pools.get(kind)
    if pool is None or pool.loop is not asyncio.get_running_loop():
        close_pool(kind)
        pool = _pools[kind] = VerifierPool(kind, size)
    return pool


@atexit.register
def _close_all() -> None:
    keep_workers(0)
    for kind in list(_pools):
        close_pool(kind)
    for kept in _kept.values():
        for worker in kept:
            worker.kill()


def close_pool(kind: str) -> None:
    """End the workers of `kind`; does nothing if there are none."""
    pool = _pools.pop(kind, None)
    if pool is not None:
        pool.close()
