"""A link between weight servers and receivers that can be made to fail."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

Fault = Callable[[socket.socket, bytes, int], bytes | None]
"""Takes the receiver's socket, bytes from the sender and how many passed before; returns what to pass on.
None: cut."""


class Link:
    """A TCP proxy: passes bytes on, those from the sender through `fault`, counted over all connections."""

    def __init__(self, target: tuple[str, int], fault: Fault | None = None) -> None:
        self._target = target
        self._fault = fault
        self._lock = threading.Lock()
        self.passed_bytes = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_closed = False

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def __enter__(self) -> "Link":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Every connection at once; new ones are refused."""
        with self._lock:
            self._is_closed = True
            for connection in (self._listener, *self._sockets):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                receiver, _ = self._listener.accept()
            except OSError:
                return
            try:
                sender = socket.create_connection(self._target)
            except OSError:  # the sender is gone: the receiver is to see that
                receiver.close()
                continue
            with self._lock:
                if self._is_closed:
                    receiver.close()
                    sender.close()
                    return
                self._sockets += [receiver, sender]
            self._start(self._pass, receiver, sender, None)
            self._start(self._pass, sender, receiver, self._fault)

    def _pass(self, origin: socket.socket, target: socket.socket, fault: Fault | None) -> None:
        try:
            while content := origin.recv(2**16):
                if fault is not None:
                    with self._lock:
                        before, self.passed_bytes = self.passed_bytes, self.passed_bytes + len(content)
                    changed = fault(target, content, before)
                    if changed is None:
                        break
                    content = changed
                target.sendall(content)
        except OSError:
            pass
        for connection in (origin, target):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def flip_at(position: int) -> Fault:
    """Change one byte, the one at `position` of all that pass."""

    def fault(_: socket.socket, content: bytes, before: int) -> bytes:
        if before <= position < before + len(content):
            at = position - before
            return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]
        return content

    return fault


def flip_often(seed: int, share: float) -> Fault:
    generator = random.Random(seed)

    def fault(_: socket.socket, content: bytes, before: int) -> bytes:
        if len(content) > 100 and generator.random() < share:
            at = generator.randrange(len(content))
            return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        return content

    return fault


def cut_at(position: int) -> Fault:
    """Cut the connection that carries the byte at `position`, in the middle of what it carries."""

    def fault(target: socket.socket, content: bytes, before: int) -> bytes | None:
        if before <= position < before + len(content):
            target.sendall(content[: position - before])
            return None
        return content

    return fault


def ends_at(position: int, *, silently: bool = False) -> Fault:
    """Pass on what is before `position`, and then cut every connection, or send nothing more."""
    return lambda _, content, before: content if before < position else b"" if silently else None


@contextlib.contextmanager
def full_listener() -> Iterator[socket.socket]:
    """A listener at which the kernel drops the packets of whoever wants to connect."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener


def in_parts(at: int, *, part_bytes: int, pause_s: float) -> Fault:
    def fault(target: socket.socket, content: bytes, before: int) -> bytes:
        quick = max(0, min(len(content), at - before))
        target.sendall(content[:quick])
        for start in range(quick, len(content), part_bytes):
            target.sendall(content[start : start + part_bytes])
            time.sleep(pause_s)
        return b""

    return fault


def once_after(at: int, strike: Callable[[], None]) -> Fault:
    struck = threading.Event()

    def fault(_: socket.socket, content: bytes, before: int) -> bytes:
        if before + len(content) > at and not struck.is_set():
            struck.set()
            strike()
        return content

    return fault
