"""Small requests against servers that drip, lie or say nothing."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from rl_agent.http import client as http_client

Serve = Callable[[socket.socket, threading.Event], None]


@contextmanager
def served(serve: Serve, requests: list[bytes] | None = None) -> Iterator[str]:
    """The address of a server that treats each connection so, until the test is over."""
    is_over = threading.Event()

    def accept() -> None:
        while not is_over.is_set():
            try:
                arrived, _ = listening.accept()
            except OSError:
                return
            with arrived:
                payload = arrived.recv(65536)
                if requests is not None:
                    requests.append(payload)
                with suppress(OSError):
                    serve(arrived, is_over)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            is_over.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def dripping(first: bytes, drop: bytes) -> Serve:
    def serve(arrived: socket.socket, is_over: threading.Event) -> None:
        arrived.sendall(first)
        while not is_over.wait(0.05):
            arrived.sendall(drop)

    return serve


@pytest.mark.parametrize(
    "serve",
    [
        dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"),
        dripping(b"HTTP/1.1 200 OK\r\n\r\n", b"x"),  # its end is that of the connection
        dripping(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        dripping(b"", b"H"),
        dripping(b"HTTP/1.1 500 No\r\nX-Long: ", b"x"),
    ],
)
def test_an_answer_that_drips_is_over_at_the_deadline(serve):
    with served(serve) as url, pytest.raises(OSError, match=r"within 0\.4 s"):
        http_client.request(url, timeout_s=0.4)


@pytest.mark.parametrize(
    "payload", [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"\0" * 100]
)
def test_malformed_http_is_an_error_of_the_connection(payload):
    with served(lambda arrived, _: arrived.sendall(payload)) as url, pytest.raises(OSError):
        http_client.request(url, timeout_s=60)


def test_an_answer_is_returned_and_a_refusal_raised():
    def serve(arrived: socket.socket, _: threading.Event) -> None:
        arrived.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell")

    def refuse(arrived: socket.socket, _: threading.Event) -> None:
        arrived.sendall(b"HTTP/1.1 404 Gone\r\nContent-Length: 2\r\n\r\nno")

    with served(serve) as url:
        assert http_client.request(url, timeout_s=60) == b"well"
    with served(refuse) as url, pytest.raises(http_client.RequestRefused) as refused:
        http_client.request(url, timeout_s=60)
    assert refused.value.status == 404


@pytest.mark.parametrize(("host", "has_token"), [("127.0.0.1", True), ("localhost", False)])
def test_a_redirect_takes_the_token_to_no_other_address(host, has_token):
    requests: list[bytes] = []

    def serve(arrived: socket.socket, _: threading.Event) -> None:
        there = f"http://{host}:{arrived.getsockname()[1]}/there"
        response = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell"
        moved = f"HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode()
        arrived.sendall(response if len(requests) == 2 else moved)

    with served(serve, requests) as url:
        assert http_client.request(url, token="secret", timeout_s=60) == b"well"
    assert [b"Bearer secret" in sent_request for sent_request in requests] == [True, has_token]


def test_a_redirect_to_another_protocol_is_not_followed():
    moved = b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n"
    with served(lambda arrived, _: arrived.sendall(moved)) as url, pytest.raises(OSError, match="no answer"):
        http_client.request(url, timeout_s=60)
