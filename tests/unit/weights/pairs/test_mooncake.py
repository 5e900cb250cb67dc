"""Weights by Mooncake, with a stand-in of its engine: what the engine cannot bring comes by TCP."""

import ctypes
import sys
import threading
from types import SimpleNamespace

import pytest

from rl_agent.weights.pairs import mooncake
from rl_agent.weights.pairs.mooncake import MooncakeSource, RegisteredBlobs, TransferEngine
from rl_agent.weights.server.server import WeightServer
from rl_agent.weights.store.catalog import Catalog
from tests.support.weight_transfers import SERVER, TOKEN, announced, new_host, receive, source_at, with_fetch
from tests.unit.weights.weight_versions import publish_steps, same_bits, state_of


class Engine:
    """Reads memory of this process; `does` says how a read goes."""

    does = staticmethod(lambda number: 0)
    reads = 0

    def initialize(self, host, metadata, protocol, devices):
        return 0

    def get_rpc_port(self):
        return 12345

    def register_memory(self, address, size_bytes):
        return 0

    unregister_memory = staticmethod(lambda address: 0)

    def transfer_sync_read(self, session, to, source, size_bytes):
        type(self).reads += 1
        if (result := self.does(self.reads)) == 0:
            ctypes.memmove(to, source, size_bytes)
        return result


@pytest.fixture
def engine(monkeypatch):
    kind = type("FreshEngine", (Engine,), {})
    monkeypatch.setitem(sys.modules, "mooncake", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mooncake.engine", SimpleNamespace(TransferEngine=kind))
    return kind


@pytest.fixture
def fetched(tmp_path, engine):
    """Fetches a version; the bytes that went by TCP."""

    def fetch() -> int:
        sending = RegisteredBlobs(TransferEngine("127.0.0.1"))
        with (
            publish_steps(tmp_path / "sender", 1, rows=4000) as store,
            new_host(tmp_path / "receiver", fetch=with_fetch(streams_per_source=1)) as receiver,
            WeightServer(Catalog(store), TOKEN, SERVER, memory=sending) as server,
        ):
            source = MooncakeSource(source_at(server.address), TransferEngine("127.0.0.1"))
            receive(receiver, announced(store.newest), [source])
            got, expected = state_of(receiver.store.newest), state_of(store.newest)
            assert all(same_bits(got[name], tensor) for name, tensor in expected.items())
            return server.sent_bytes

    return fetch


def test_pieces_come_out_of_the_senders_memory(fetched, engine):
    assert fetched() == 0
    assert engine.reads > 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", ["fails", "raises"])
def test_an_engine_failing_in_the_middle_costs_a_piece_and_tcp_the_rest(fetched, engine, kind):
    def does(number: int) -> int:
        if number < 2:
            return 0
        if kind == "raises":
            raise RuntimeError("no such segment")
        return -1

    engine.does = staticmethod(does)
    assert fetched() > 0
    assert engine.reads == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sender_asleep_in_a_transfer_is_not_awaited(fetched, engine, monkeypatch):
    awake = threading.Event()
    monkeypatch.setattr(mooncake, "MOVE_S", 0.05)
    engine.does = staticmethod(lambda number: -1 if number > 1 and awake.wait(60) else 0)
    try:
        assert fetched() > 0
        assert engine.reads == 2
    finally:
        awake.set()
