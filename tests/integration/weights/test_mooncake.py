"""Weights through Mooncake's own transfer engine, over TCP; `scripts/test.sh extended` installs it."""

import asyncio
import json
from contextlib import contextmanager

import pytest

from rl_agent.pool.settings import load_weights
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.pairs.mooncake import MooncakeSource, TransferEngine
from rl_agent.weights.server.server import WeightServer
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import FULL, open_snapshot
from rl_agent.worker.weight_cache import HostWeights
from tests.support.weight_transfers import (
    NO_MANAGER,
    SERVER,
    TOKEN,
    announced,
    new_host,
    offer_of,
    receive,
    running_program,
    source_at,
)
from tests.unit.weights.weight_versions import publish_steps, same_bits, state_of

pytestmark = [pytest.mark.extended, pytest.mark.timeout(120)]

SENDER = """
import json, sys
from pathlib import Path
from rl_agent.weights.pairs.mooncake import RegisteredBlobs, TransferEngine
from rl_agent.weights.server.server import WeightServer
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import SnapshotStore
from tests.support.weight_transfers import SERVER, TOKEN

with SnapshotStore(Path(sys.argv[1]), keep_versions=9) as store:
    memory = RegisteredBlobs(TransferEngine("127.0.0.1"))
    with WeightServer(Catalog(store), TOKEN, SERVER, memory=memory) as server:
        print(json.dumps(server.address), flush=True)
        sys.stdin.read()
        print(server.sent_bytes, flush=True)
"""


@contextmanager
def sender_of(root):
    """A process of its own that gives the store at `root`, and its address."""
    with running_program(SENDER, root) as process:
        yield process, next(tuple(json.loads(line)) for line in process.stdout if line.startswith("["))


@pytest.fixture
def engine():
    return TransferEngine("127.0.0.1")


def test_versions_come_out_of_the_senders_memory_bit_for_bit(tmp_path, engine):
    with publish_steps(tmp_path / "sender", 3, rows=4000) as store:
        versions = [announced(open_snapshot(store.root, number)) for number in (1, 2, 3)]
        expected = state_of(store.newest)
    with sender_of(tmp_path / "sender") as (sender, address), new_host(tmp_path / "receiver") as receiver:
        source = MooncakeSource(source_at(address), engine)
        for version in versions:
            _, report = receive(receiver, version, [source])
        assert report.deltas == 1
        got = state_of(receiver.store.newest)
        assert all(same_bits(got[name], tensor) for name, tensor in expected.items())
        sent, _ = sender.communicate(timeout=30)
        assert int(sent.split()[-1]) == 0, "pieces went over the connection"


def test_a_sender_that_dies_between_two_pieces_is_an_error_and_not_a_hang(tmp_path, engine):
    publish_steps(tmp_path / "sender", 1, rows=4000).close()
    with sender_of(tmp_path / "sender") as (sender, address):
        connection = MooncakeSource(source_at(address), engine).connection()
        connection.open(Deadline.after(10))
        target = memoryview(bytearray(4096))
        connection.read_piece(1, FULL, 0, 0, target, Deadline.after(10))
        sender.kill()
        sender.wait(10)
        with pytest.raises(OSError, match="transfer failed"):
            connection.read_piece(1, FULL, 1, 4096, target, Deadline.after(10))
        connection.close()


def test_a_server_without_an_engine_gives_its_pieces_over_the_connection(tmp_path, engine):
    with publish_steps(tmp_path / "sender", 1) as store, new_host(tmp_path / "receiver") as receiver:
        with WeightServer(Catalog(store), TOKEN, SERVER) as server:
            receive(receiver, announced(store.newest), [MooncakeSource(source_at(server.address), engine)])
            assert server.sent_bytes > 0
        assert receiver.store.newest.manifest.digest == store.newest.manifest.digest


def test_a_worker_told_to_takes_its_weights_so(tmp_path, engine):
    with publish_steps(tmp_path / "sender", 1, rows=4000) as store:
        version = announced(store.newest)
    transfer = load_weights(["transport=mooncake", f"store={tmp_path}", "threads=1"])
    with (
        sender_of(tmp_path / "sender") as (sender, (host, port)),
        HostWeights(transfer, "127.0.0.1", NO_MANAGER) as here,
    ):
        assert asyncio.run(here.fetch(offer_of(version, f"tcp://{host}:{port}"))) == 1
        sent, _ = sender.communicate(timeout=30)
        assert int(sent.split()[-1]) == 0, "pieces went over the connection"
