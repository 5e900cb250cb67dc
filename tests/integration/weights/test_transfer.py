"""Versions travel whole and verified between hosts, as deltas where that is less, from whoever has them."""

import threading

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.sources.source_tcp import TcpConnection
from rl_agent.weights.store.store import DELTA, FULL, SnapshotStore
from tests.support.weight_links import Link, ends_at
from tests.support.weight_transfers import announced, hold, host, new_host, receive, source_at, with_fetch


def test_a_version_arrives_bit_for_bit(newest, sender, receiver):
    snapshot, report = receive(receiver, announced(newest), [sender.source])
    assert snapshot.map(FULL) == newest.map(FULL)
    assert snapshot.manifest.digest == newest.manifest.digest
    assert report.deltas == 0
    assert report.fetched_bytes == newest.manifest.full.size_bytes == sender.server.sent_bytes


@pytest.mark.parametrize("held", [1, 2])
def test_a_receiver_takes_only_the_deltas_that_it_lacks_and_keeps_the_last(sender, receiver, held):
    receive(receiver, announced(hold(sender, held)), [sender.source])
    snapshot, report = receive(receiver, announced(hold(sender, 3)), [sender.source])
    deltas = [hold(sender, number).manifest.delta.blob.size_bytes for number in range(held + 1, 4)]
    assert (report.deltas, report.fetched_bytes) == (len(deltas), sum(deltas))
    assert snapshot.map(FULL) == hold(sender, 3).map(FULL)
    assert snapshot.map(DELTA) == hold(sender, 3).map(DELTA)
    assert {path.name for path in snapshot.folder.iterdir()} == {"manifest.json", "full.bin", "delta.bin"}


def test_a_version_that_the_sender_has_dropped_is_asked_for_once(tmp_path, sender, receiver, monkeypatch):
    versions, ask = [], TcpConnection.manifest

    def manifest(connection, weight_version, *more):
        versions.append(weight_version)
        return ask(connection, weight_version, *more)

    monkeypatch.setattr(TcpConnection, "manifest", manifest)
    newest = hold(sender, 3)
    with host(SnapshotStore(tmp_path / "relay", keep_versions=1)) as relay:
        receive(relay, announced(hold(sender, 2)), [sender.source])
        receive(relay, announced(newest), [sender.source])
        receive(receiver, announced(hold(sender, 1)), [sender.source])
        versions.clear()
        _, report = receive(receiver, announced(newest), [relay.source])
    assert report.deltas == 0
    assert versions == [3, 2]


def test_a_delta_that_gives_other_weights_is_followed_by_a_full_transfer(sender, receiver):
    receive(receiver, announced(hold(sender, 2)), [sender.source])
    path = hold(receiver, 2).path(FULL)
    content = bytearray(path.read_bytes())
    content[100] ^= 1  # the receiver's memory went bad
    path.write_bytes(content)
    snapshot, report = receive(receiver, announced(hold(sender, 3)), [sender.source])
    assert report.deltas == 0
    assert snapshot.map(FULL) == hold(sender, 3).map(FULL)


def test_a_receiver_gives_on_verified_pieces_before_it_has_all(newest, tmp_path, sender):
    """Two receivers, each behind a link that carries half a version and then breaks, complete each other."""
    half = newest.manifest.full.size_bytes // 2 + 40_000
    patient = with_fetch(retries=1000)
    with (
        new_host(tmp_path / "one", fetch=patient) as first,
        new_host(tmp_path / "two", fetch=patient) as second,
        Link(sender.server.address, ends_at(half)) as left,
        Link(sender.server.address, ends_at(half)) as right,
    ):
        results = []

        def fetch(receiving, link, other):
            results.append(receive(receiving, announced(newest), [source_at(link.address), other.source]))

        threads = [
            threading.Thread(target=fetch, args=arguments)
            for arguments in ((first, left, second), (second, right, first))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [snapshot.map(FULL) == newest.map(FULL) for snapshot, _ in results] == [True, True]


def test_a_version_other_than_the_announced_one_is_refused(sender, receiver):
    with pytest.raises(WeightsError, match="not the announced"):
        receive(receiver, Announcement(3, hold(sender, 2).manifest.digest), [sender.source])
    with pytest.raises(WeightsError, match="has no version 9"):
        receive(receiver, Announcement(9, "0" * 64), [sender.source])
    assert receiver.store.versions == []


def test_a_version_that_is_here_already_is_not_fetched_again(sender, receiver):
    receive(receiver, announced(sender.store.newest), [sender.source])
    sent = sender.server.sent_bytes
    receive(receiver, announced(sender.store.newest), [])
    assert sender.server.sent_bytes == sent
    with pytest.raises(WeightsError, match="with another digest"):
        receive(receiver, Announcement(3, "0" * 64), [sender.source])


def test_a_version_older_than_the_newest_here_is_refused_before_sending(sender, receiver):
    receive(receiver, announced(hold(sender, 3)), [sender.source])
    sent = sender.server.sent_bytes
    with pytest.raises(WeightsError, match="version 2 is older than 3"):
        receive(receiver, announced(hold(sender, 2)), [sender.source])
    assert sender.server.sent_bytes == sent
    assert receiver.store.versions == [3]
