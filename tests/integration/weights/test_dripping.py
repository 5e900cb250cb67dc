"""Sources that never quite stop answering: the deadline ends what waits for them, and so does a stop."""

import contextlib
import itertools
import socket
import ssl
import threading
import time
from contextlib import contextmanager

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.channel import MAGIC
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.format.manifest import dump_manifest
from rl_agent.weights.sources.source_http import HttpSource
from tests.support.certificate import make_certificate
from tests.support.weight_links import full_listener
from tests.support.weight_transfers import announced, receive, source_at

HEAD = b"HTTP/1.1 200 OK\r\n"
CANCELLED = pytest.raises(WeightsError, match="cancelled")


def dripping(start, drops):
    """Return the parts of an answer that begins with `start` and never ends."""
    return lambda: itertools.chain([start], itertools.repeat(drops))


ONE_HEADER = dripping(HEAD + b"X-Long: ", b"a")
BODY = dripping(HEAD + b"Content-Length: 1000000\r\n\r\n", b"{")
DRIPS = {
    "one header": ONE_HEADER,
    "body": BODY,
    "tiny chunks": dripping(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
}


@contextmanager
def answering(*answers, tls=None, pause_s=0.01):
    """A server that drips what the answers yield, the last of them repeated, and an event of its begin."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        ended, begun, threads = threading.Event(), threading.Event(), []

        def answer(plain, parts):
            wrapped = plain if tls is None else tls.wrap_socket(plain, server_side=True)
            with contextlib.suppress(OSError), wrapped as connection:
                connection.recv(4096)
                for part in parts:
                    if ended.is_set():
                        return
                    connection.sendall(part)
                    begun.set()
                    time.sleep(pause_s)

        def accept():
            for number in itertools.count():
                while True:
                    if ended.is_set():
                        return
                    with contextlib.suppress(TimeoutError):
                        connection, _ = listener.accept()
                        break
                parts = answers[min(number, len(answers) - 1)]()
                threads.append(threading.Thread(target=answer, args=(connection, parts)))
                threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname(), begun
        finally:
            ended.set()
            accepting.join()
            for thread in threads:
                thread.join()


def http(address, **options):
    return HttpSource("http://{}:{}".format(*address), dict, 5.0, **options)


def manifest_of(sender):
    """The first answer is right, so that what comes after is asked for."""
    content = dump_manifest(sender.store.newest.manifest)
    return lambda: iter([HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content])


def test_a_dripping_answer_outlives_neither_the_deadline_nor_a_stop(receiver):
    check_ends(receiver, Announcement(1, "0" * 64), BODY)


@pytest.mark.parametrize("drip", DRIPS.values(), ids=DRIPS)
def test_a_dripping_piece_outlives_neither_the_deadline_nor_a_stop(sender, receiver, drip):
    check_ends(receiver, announced(sender.store.newest), manifest_of(sender), drip)


def check_ends(receiver, announcement, *answers, source=None):
    source = source or http
    began = time.monotonic()
    with answering(*answers) as (address, _), pytest.raises(WeightsError):
        receive(receiver, announcement, [source(address)], timeout_s=0.3)
    with answering(*answers) as (address, begun), stopped_once(begun) as stop, CANCELLED:
        receive(receiver, announcement, [source(address)], timeout_s=60, stop=stop)
    assert time.monotonic() - began < 50  # and not the 60 s of the second
    assert receiver.store.versions == []


@contextmanager
def stopped_once(event):
    stop = threading.Event()

    def follow():
        event.wait(30)
        stop.set()

    following = threading.Thread(target=follow)
    following.start()
    try:
        yield stop
    finally:
        event.set()
        following.join()


def test_a_handshake_that_drips_outlives_neither_the_deadline_nor_a_stop(receiver):
    check_ends(receiver, Announcement(1, "0" * 64), dripping(MAGIC[:1], MAGIC[:1]), source=source_at)


def test_a_server_that_does_not_even_accept_is_left_when_told_to_stop(receiver):
    stop = threading.Event()
    with full_listener() as listener:
        stopping = threading.Timer(0.1, stop.set)
        stopping.start()
        began = time.monotonic()
        for source in (http(listener.getsockname()), source_at(listener.getsockname())):
            with CANCELLED:
                receive(receiver, Announcement(1, "0" * 64), [source], timeout_s=60, stop=stop)
        assert time.monotonic() - began < 50
        stopping.join()


def test_an_encrypted_answer_that_drips_is_left_when_told_to_stop(tmp_path, receiver):
    certificate, key = make_certificate(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=certificate)
    with answering(ONE_HEADER, tls=server) as ((_, port), begun):
        source = HttpSource(f"https://127.0.0.1:{port}", dict, 5.0, client)
        with stopped_once(begun) as stop, CANCELLED:
            receive(receiver, Announcement(1, "0" * 64), [source], timeout_s=60, stop=stop)
