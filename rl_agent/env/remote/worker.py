"""A worker process: one event loop with many instances of environments, for the parent at its socket.

    first frame: which kinds there are ─► Reset, Act, Close, Ping … (`wire`) ─► end of the socket: close all

It is `python -m rl_agent.env.remote.worker FOLDER`; its stdout is stderr, its temporary files are in that
folder, and its default threads are daemons. The log shows where an environment blocks the event loop.
"""

import asyncio
import faulthandler
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from rl_agent.env.protocol import Environment
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.env.remote.host import InstanceHost
from rl_agent.env.remote.stream import FrameStream
from rl_agent.env.remote.wire import Make
from rl_agent.errors import ConfigError
from rl_agent.system.worker_threads import WorkerThreads

_SHOWN_AFTER_S = 10.0
_TICK_S = 1.0
END_LIMIT_S = 20.0


class WorkerSetup(msgspec.Struct, frozen=True):
    """The first frame: sent by the process that started the worker, never over a network."""

    kinds: dict[str, str]
    module_folders: tuple[Path, ...]
    threads: int
    kwargs: dict[str, dict[str, Any]] = {}
    begin_with: tuple[str, ...] = ()
    """The kinds whose classes are imported at the start."""


def write_setup(setup: WorkerSetup) -> bytes:
    return msgspec.msgpack.encode(setup, enc_hook=str)


def read_setup(frame: bytes) -> WorkerSetup:
    return msgspec.msgpack.decode(frame, type=WorkerSetup, dec_hook=lambda kind, value: kind(value))


async def show_blocks() -> None:
    """Write the stack to the log whenever the event loop is blocked for `_SHOWN_AFTER_S`, until cancelled."""
    try:
        while True:
            faulthandler.dump_traceback_later(_SHOWN_AFTER_S)  # in place of the one before
            await asyncio.sleep(_TICK_S)
    finally:
        faulthandler.cancel_dump_traceback_later()


async def serve(connected: socket.socket) -> None:
    """Serve the parent until it closes the socket."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    receive: Callable[[bytes], None] | None = None
    setup: asyncio.Future[WorkerSetup] = loop.create_future()

    def on_frame(frame: bytes) -> None:
        if receive is not None:
            receive(frame)
        elif not setup.done():
            setup.set_result(read_setup(frame))
        else:
            early.append(frame)

    early: list[bytes] = []
    stream = await FrameStream.over(connected, on_frame, closed.set)
    told = await setup
    loop.set_default_executor(WorkerThreads(told.threads))
    registry = EnvironmentRegistry(told)
    with suppress(ConfigError):  # whoever makes an instance is told
        registry.check(told.begin_with)

    async def make(question: Make) -> Environment:
        return registry.create(question.kind)

    async with asyncio.TaskGroup() as jobs, registry:
        watching = jobs.create_task(show_blocks(), name="show blocks")
        host = InstanceHost(make, stream.send, jobs)
        for frame in early:
            host.receive(frame)
        receive = host.receive
        await closed.wait()
        threading.Timer(END_LIMIT_S, os._exit, (1,)).start()  # whatever an environment's end waits for
        await host.close()
        watching.cancel()


def main(folder: str) -> None:
    """Serve the socket that is file descriptor 0; the process ends here."""
    os.dup2(2, 1)  # stdout of a verb is for its one line
    tempfile.tempdir = folder
    os.environ["TMPDIR"] = folder
    faulthandler.enable()
    connected = socket.socket(fileno=os.dup(0))
    connected.setblocking(False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(connected))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of an environment that hang do not hold up the end


if __name__ == "__main__":
    main(*sys.argv[1:])
