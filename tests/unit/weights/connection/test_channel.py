"""Both ends of a channel know the token."""

import socket
import threading

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection import channel
from rl_agent.weights.connection.channel import MAGIC, MAX_MESSAGE_BYTES, accept, connect, shut
from rl_agent.weights.connection.deadline import Deadline

TOKEN = b"the token of this pool"


def soon():
    return Deadline.after(30)


class Server(threading.Thread):
    """Accepts one connection, and keeps its channel or what went wrong."""

    def __init__(self, token=TOKEN):
        super().__init__()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.token, self.channel, self.error = token, None, None
        self.start()

    def run(self):
        self.connection, _ = self.listener.accept()
        try:
            self.channel = accept(self.connection, self.token, 30.0)
        except (WeightsError, OSError) as error:
            self.error = error
            self.connection.close()


@pytest.fixture
def serving():
    servers = []

    def start(**settings):
        servers.append(Server(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.join()
        server.listener.close()
        server.connection.close()


@pytest.fixture
def client():
    with socket.socket() as connection:
        yield connection


def opened(server, connection, token=TOKEN):
    here = connect(connection, server.listener.getsockname(), token, soon(), 30.0)
    server.join()
    return here, server.channel


def test_frames_come_as_they_were_sent_both_ways(serving, client):
    here, there = opened(serving(), client)
    for content in (b"", b"one", b"x" * MAX_MESSAGE_BYTES):
        here.send(content, soon())
        assert there.receive(soon()) == content
        there.send(content[::-1], soon())
        assert here.receive(soon()) == content[::-1]


def test_a_client_leaves_a_server_with_another_token_and_hides_its_own(serving, client):
    server = serving(token=b"another")
    with pytest.raises(WeightsError, match="the sender has another token"):
        connect(client, server.listener.getsockname(), TOKEN, soon(), 30.0)
    client.close()
    server.join()
    assert server.channel is None


def test_a_server_cuts_off_a_client_that_does_not_prove_the_token(serving, client):
    server = serving()
    client.connect(server.listener.getsockname())
    client.sendall(MAGIC + bytes(channel.NONCE_BYTES) + bytes(32))
    server.join()
    assert str(server.error) == "the receiver has another token"


def test_a_client_that_begins_unlike_a_receiver_learns_nothing(serving, client):
    server = serving()
    client.connect(server.listener.getsockname())
    client.sendall(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n")
    server.join()
    assert str(server.error) == "not a receiver of weights"


def test_a_length_that_no_message_has_is_refused_before_it_is_waited_for(serving, client):
    here, there = opened(serving(), client)
    here.wire.send((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"), soon())
    with pytest.raises(WeightsError, match=f"a frame of {MAX_MESSAGE_BYTES + 1} bytes is longer"):
        there.receive(soon())
    there.send(bytes(MAX_MESSAGE_BYTES + 1), soon())
    assert len(here.receive(soon(), most_bytes=2 * MAX_MESSAGE_BYTES)) == MAX_MESSAGE_BYTES + 1


def test_shutting_ends_a_wait_and_is_harmless_where_nothing_is_connected(serving, client):
    _, there = opened(serving(), client)
    waited = []

    def wait():
        try:
            there.receive(soon())
        except OSError as error:
            waited.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    shut(client)
    waiting.join()
    assert waited
    with socket.socket() as alone:
        shut(alone)
    client.close()
    shut(client)
