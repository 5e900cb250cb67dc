"""Connections without the token take nothing from receivers that have it."""

import contextlib
import logging
import socket
from dataclasses import replace

import pytest

from rl_agent.errors import WeightsError
from rl_agent.testing.weight_transfers import SERVER, TOKEN, announced, host, receive, source_at
from rl_agent.weights.connection.channel import MAGIC, connect
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.connection.messages import ManifestQuestion, dump
from rl_agent.weights.server import connections
from rl_agent.weights.server.server import WeightServer
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import FULL
from tests.unit.weights.weight_versions import publish_steps


@contextlib.contextmanager
def half_handshakes(address, count):
    """Connections that begin to greet and leave it at that."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(stack.enter_context(socket.create_connection(address, timeout=20)))
            connections[-1].sendall(MAGIC + bytes(10))
        yield connections


@pytest.fixture
def small(tmp_path):
    """A sender with as many places as half handshakes would fill."""
    store = publish_steps(tmp_path / "sender", 1)
    with host(store, server=replace(SERVER, max_connections=8)) as running:
        yield running


def test_half_handshakes_fill_no_place_and_are_logged_once_in_a_while(small, receiver, caplog):
    with caplog.at_level(logging.WARNING), half_handshakes(small.server.address, 200):
        snapshot, _ = receive(receiver, announced(small.store.newest), [small.source])
        assert snapshot.map(FULL) == small.store.newest.map(FULL)
        assert small.server.connections < 100
    assert 1 <= len([record for record in caplog.records if record.name == connections.__name__]) <= 3


def test_the_oldest_that_did_not_show_the_token_goes_first(small):
    with half_handshakes(small.server.address, 40) as connections:
        assert connections[0].recv(1) == b""
        connections[-1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            connections[-1].recv(1)


def test_a_receiver_that_was_served_before_goes_on_being_served(small):
    connection = small.source.connection()
    connection.open(Deadline.after(20))
    with half_handshakes(small.server.address, 200):
        assert connection.manifest(1, None, Deadline.after(20)) == small.store.newest.manifest
    connection.close()


def test_a_host_with_the_token_that_takes_every_place_gives_one_up_for_another(tmp_path, receiver):
    store = publish_steps(tmp_path / "sender", 1)
    with (
        host(store, server=replace(SERVER, max_connections=4)) as sender,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(4):
            other_host = stack.enter_context(socket.socket())
            other_host.bind(("127.0.0.2", 0))
            deadline = Deadline.after(20)
            channel = connect(other_host, sender.server.address, TOKEN, deadline, 20.0)
            channel.send(dump(ManifestQuestion(1)), deadline)
            channel.receive(deadline)
        snapshot, _ = receive(receiver, announced(sender.store.newest), [sender.source])
        assert snapshot.map(FULL) == sender.store.newest.map(FULL)


def test_a_server_serves_nobody_before_it_has_a_token_and_drops_those_of_an_old_one(tmp_path, receiver):
    with publish_steps(tmp_path / "sender", 1) as store, WeightServer(Catalog(store), None, SERVER) as server:
        newest = announced(store.newest)
        with pytest.raises(WeightsError, match="closed the connection"):
            receive(receiver, newest, [source_at(server.address)])
        server.change_token(TOKEN)
        connection = source_at(server.address).connection()
        connection.open(Deadline.after(20))
        server.change_token(TOKEN)
        assert connection.manifest(1, None, Deadline.after(20)) == store.newest.manifest
        server.change_token(b"of another trainer")
        with pytest.raises(OSError):
            connection.manifest(1, None, Deadline.after(20))
        connection.close()
        receive(receiver, newest, [source_at(server.address, b"of another trainer")])
