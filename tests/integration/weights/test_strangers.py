"""Connections without the token take nothing from receivers that have it."""

import contextlib
import socket
from dataclasses import replace

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection import channel
from rl_agent.weights.connection.channel import MAGIC
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.server.server import WeightServer
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import FULL
from tests.support.weight_transfers import SERVER, TOKEN, announced, host, receive, source_at
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


def test_half_handshakes_hold_places_only_until_their_deadline(small, receiver, monkeypatch):
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.2)
    with half_handshakes(small.server.address, 20):
        monkeypatch.setattr(channel, "HANDSHAKE_S", 20.0)
        snapshot, _ = receive(receiver, announced(small.store.newest), [small.source])
        assert snapshot.map(FULL) == small.store.newest.map(FULL)
        assert small.server.connections <= 8


def test_a_receiver_that_was_served_before_goes_on_being_served(small):
    connection = small.source.connection()
    connection.open(Deadline.after(20))
    with half_handshakes(small.server.address, 100):
        assert connection.manifest(1, None, Deadline.after(20)) == small.store.newest.manifest
    connection.close()


def test_a_server_without_a_token_serves_nobody_and_drops_old_ones(tmp_path, receiver):
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
