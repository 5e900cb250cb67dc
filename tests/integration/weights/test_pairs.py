"""Weights over pairs, gloo in the place of NCCL: whatever happens, what arrives is right, nothing hangs."""

import asyncio
import json
import tempfile
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rl_agent.errors import WeightsError
from rl_agent.pool.settings import load_weights
from rl_agent.weights.pairs import pairs as pairs_module
from rl_agent.weights.pairs.pairs import Pairing, PairSource
from rl_agent.weights.server import server as server_module
from rl_agent.weights.store.store import FULL
from rl_agent.weights.transports import PieceTransport
from rl_agent.worker import weight_cache
from rl_agent.worker.weight_cache import HostWeights
from tests.support.gloo_pairs import GlooPair, GlooPairs
from tests.support.weight_pairs import WatchedPairs, stuck_at
from tests.support.weight_transfers import (
    NO_MANAGER,
    SERVER,
    announced,
    host,
    new_host,
    offer_of,
    receive,
    running_program,
    source_at,
    with_fetch,
)
from tests.unit.weights.weight_versions import publish_steps, same_bits, state_of

pytestmark = pytest.mark.timeout(120)
PATIENT = replace(SERVER, piece_timeout_s=60.0, idle_timeout_s=60.0)
"""A busy machine is no reason to give a pair up, where that is not what is tested."""
patient = partial(with_fetch, piece_timeout_s=60.0)


@pytest.fixture(autouse=True)
def nobody_hurries(monkeypatch):
    for module in (pairs_module, server_module):
        monkeypatch.setattr(module, "JOIN_S", 60.0)
        monkeypatch.setattr(module, "MOVE_S", 60.0)


def by_pairs(sender, maker=None) -> PairSource:
    return PairSource(source_at(sender.server.address, idle_timeout_s=60.0), Pairing(maker or GlooPairs()))


@pytest.fixture
def sender(tmp_path):
    with host(
        publish_steps(tmp_path / "sender", 2, rows=4000), pairs=WatchedPairs(), server=PATIENT
    ) as running:
        yield running


@pytest.fixture
def receiver(tmp_path):
    with new_host(tmp_path / "receiver", fetch=patient(streams_per_source=1)) as running:
        yield running


def has_all(receiving, sending):
    got, expected = state_of(receiving.store.newest), state_of(sending.store.newest)
    return all(same_bits(got[name], tensor) for name, tensor in expected.items())


def test_a_whole_version_and_a_difference_come_over_pairs_bit_for_bit(tmp_path):
    maker = WatchedPairs()
    with (
        host(publish_steps(tmp_path / "sender", 3, rows=4000), pairs=GlooPairs(), server=PATIENT) as sender,
        new_host(tmp_path / "receiver", fetch=patient()) as receiver,
    ):
        fetched_bytes = 0
        for version in (1, 3):
            with sender.store.hold(version) as snapshot:
                _, report = receive(receiver, announced(snapshot), [by_pairs(sender, maker)])
            assert report.deltas == (2 if version == 3 else 0)
            fetched_bytes += report.fetched_bytes
        assert has_all(receiver, sender)
        assert maker.moved_bytes == fetched_bytes > 0


def test_a_wrong_byte_from_a_pair_costs_one_piece_and_is_never_published(sender, receiver):
    class Flipping(WatchedPairs):
        def join(self, invitation, rank, until):
            pair = super().join(invitation, rank, until)
            inner = pair.pair.receive

            def receive_wrong(size_bytes, until):
                inner(size_bytes, until)
                if len(self.joined) == 1:
                    pair.memory(size_bytes)[7] ^= 1

            pair.pair.receive = receive_wrong
            return pair

    newest = announced(sender.store.newest)
    _, report = receive(receiver, newest, [by_pairs(sender, Flipping())])
    assert has_all(receiver, sender)
    assert [source.wrong_pieces for source in report.by_source.values()] == [1]


def test_pieces_of_a_server_without_such_pairs_come_over_the_connection(tmp_path, receiver):
    maker, other = WatchedPairs(), WatchedPairs()
    other.kind = "nccl 2.28.9"
    for number, pairs in enumerate((None, other), 1):
        with host(publish_steps(tmp_path / f"sender{number}", number), pairs=pairs) as sender:
            receive(receiver, announced(sender.store.newest), [by_pairs(sender, maker)])
            assert receiver.store.newest.manifest.digest == sender.store.newest.manifest.digest
    assert maker.joined == other.joined == []


def test_receivers_beyond_the_last_pair_are_served_over_their_connections(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_PAIRS", 1)
    maker = WatchedPairs()
    with (
        host(publish_steps(tmp_path / "sender", 1, rows=4000), pairs=GlooPairs(), server=PATIENT) as sender,
        new_host(tmp_path / "receiver", fetch=patient(streams_per_source=4)) as receiver,
    ):
        receive(receiver, announced(sender.store.newest), [by_pairs(sender, maker)])
        assert has_all(receiver, sender)
        assert len(maker.joined) == 1
        assert sender.server.sent_bytes > maker.moved_bytes


def test_a_sender_stuck_in_a_pair_is_left_at_the_deadline_for_tcp(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(pairs_module, "MOVE_S", 0.3)
    sending = WatchedPairs(stuck_at(2))
    with host(publish_steps(tmp_path / "sender", 1, rows=4000), pairs=sending) as sender:
        source = by_pairs(sender)
        _, report = receive(receiver, announced(sender.store.newest), [source])
        assert has_all(receiver, sender)
    assert source.pairing.is_cooling_down(str(source))
    assert "deadline" in report.by_source[str(source)].failures[0]
    assert len(sending.joined) == 1


def test_a_receiver_stuck_in_a_pair_delays_nobody_and_is_left_in_time(tmp_path, sender, monkeypatch):
    monkeypatch.setattr(server_module, "MOVE_S", 0.3)
    monkeypatch.setattr(server_module, "_MOST_PAIRS", 1)
    newest = announced(sender.store.newest)
    is_stuck, may_go_on = threading.Event(), threading.Event()

    def stuck(pair, number):
        if number == 1:
            is_stuck.set()
            may_go_on.wait(60)

    with new_host(tmp_path / "slow", fetch=patient()) as slow, new_host(tmp_path / "other") as other:
        receiving = threading.Thread(
            target=receive, args=(slow, newest, [by_pairs(sender, WatchedPairs(stuck))])
        )
        receiving.start()
        assert is_stuck.wait(30)
        receive(other, newest, [by_pairs(sender)])
        assert has_all(other, sender)
        may_go_on.set()
        receiving.join(60)
        assert has_all(slow, sender), "it went on without the pair that it had lost"


def test_a_stale_fetch_that_waits_in_a_pair_ends_when_it_is_told_to(tmp_path, receiver):
    stop = threading.Event()

    def stuck_then_stopped(pair, number):
        if number == 1 and not stop.is_set():
            stop.set()
            pair.until.wait(lambda: False)

    with host(
        publish_steps(tmp_path / "sender", 1, rows=4000), pairs=WatchedPairs(stuck_then_stopped)
    ) as sender:
        source = by_pairs(sender)
        with pytest.raises(WeightsError, match="cancelled"):
            receive(receiver, announced(sender.store.newest), [source], stop=stop)
        assert not source.pairing.is_cooling_down(str(source)), "nothing was wrong with it"
        receive(receiver, announced(sender.store.newest), [by_pairs(sender)])
        assert has_all(receiver, sender)


SENDER = """
import json, sys
from pathlib import Path
from tests.support.weight_pairs import WatchedPairs, killed_at
from tests.support.weight_transfers import new_host

with new_host(Path(sys.argv[1]), pairs=WatchedPairs(killed_at(2))) as host:
    print(json.dumps(host.server.address), flush=True)
    sys.stdin.read()
"""

RECEIVER = """
import sys
from pathlib import Path
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.pairs.pairs import Pairing, PairSource
from tests.support.weight_pairs import WatchedPairs, killed_at
from tests.support.weight_transfers import new_host, receive, source_at

with new_host(Path(sys.argv[1])) as host:
    source = PairSource(source_at(("127.0.0.1", int(sys.argv[2]))), Pairing(WatchedPairs(killed_at(2))))
    receive(host, Announcement(int(sys.argv[3]), sys.argv[4]), [source])
"""


def test_a_sender_killed_in_mid_transfer_is_an_error_and_what_came_counts(tmp_path, sender, receiver):
    publish_steps(tmp_path / "dying", 2, rows=4000).close()
    newest = announced(sender.store.newest)
    with running_program(SENDER, tmp_path / "dying") as dying:
        address = tuple(json.loads(dying.stdout.readline()))
        source = PairSource(source_at(address), Pairing(GlooPairs()))
        with pytest.raises(WeightsError, match="pieces of full are missing"):
            receive(receiver, newest, [source])
        assert dying.wait(30) == -9
    assert receiver.store.versions == []
    _, report = receive(receiver, newest, [by_pairs(sender)])
    assert report.resumed_bytes > 0
    assert has_all(receiver, sender)


def test_a_receiver_killed_in_a_transfer_leaves_sender_and_others_alone(
    tmp_path, sender, receiver, monkeypatch
):
    monkeypatch.setattr(server_module, "_MOST_PAIRS", 2)
    newest = announced(sender.store.newest)
    words = (tmp_path / "dying", sender.server.address[1], newest.weight_version, newest.digest)
    with running_program(RECEIVER, *words) as dying:
        assert dying.wait(60) == -9
    maker = WatchedPairs()
    receive(receiver, newest, [by_pairs(sender, maker)])
    assert has_all(receiver, sender)
    assert maker.moved_bytes > 0


async def fetch(here, version, *sources):
    assert await here.fetch(offer_of(version, *sources)) == version.weight_version


def test_workers_told_to_take_their_weights_so_and_give_them_on_so(tmp_path, sender, monkeypatch):
    """The second from the first alone, which has them from the trainer."""
    received, receive_piece = [], GlooPair.receive

    def counted(pair, size_bytes, until):
        receive_piece(pair, size_bytes, until)
        received.append(size_bytes)

    monkeypatch.setattr(GlooPair, "receive", counted)
    monkeypatch.setattr(
        weight_cache, "open_transport", lambda *_: PieceTransport(pairing=Pairing(GlooPairs()))
    )
    newest = announced(sender.store.newest)
    hosts = [load_weights([f"store={tmp_path / name}", "threads=1"]) for name in "ab"]
    with (
        HostWeights(hosts[0], "127.0.0.1", NO_MANAGER) as first,
        HostWeights(hosts[1], "127.0.0.1", NO_MANAGER) as second,
    ):
        asyncio.run(fetch(first, newest, *sender.server.sources))
        asyncio.run(fetch(second, newest, first.source))
        with second.hold(2) as snapshot, sender.store.hold(2) as published:
            assert snapshot.map(FULL) == published.map(FULL)
    assert sum(received) == 2 * sender.store.newest.manifest.full.size_bytes
    assert not list(Path(tempfile.gettempdir()).glob("rl-agent-pair-*")), "where the two met"


def test_gpus_that_are_not_there_are_missed_at_the_start(tmp_path):
    with (
        pytest.raises(WeightsError, match="no GPU is visible here"),
        HostWeights(load_weights(["transport=nccl", f"store={tmp_path}"]), "127.0.0.1", NO_MANAGER),
    ):
        pass
