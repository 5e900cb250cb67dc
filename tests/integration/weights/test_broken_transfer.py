"""Links that lie, break, stall or are stopped: what arrives is right, or nothing arrives."""

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.store.store import FULL
from tests.support.weight_links import Link, cut_at, ends_at, flip_at
from tests.support.weight_transfers import announced, new_host, receive, source_at


def test_one_flipped_byte_costs_one_piece_and_is_never_published(newest, sender, receiver):
    position = newest.manifest.full.size_bytes // 2
    with Link(sender.server.address, flip_at(position)) as link:
        snapshot, _ = receive(receiver, announced(newest), [source_at(link.address)])
    assert snapshot.map(FULL) == newest.map(FULL)
    assert sender.server.sent_bytes <= newest.manifest.full.size_bytes + 2 * 2 * 4096


def test_a_cut_connection_reconnects_and_resends_no_verified_piece(newest, sender, receiver):
    with Link(sender.server.address, cut_at(newest.manifest.full.size_bytes // 2)) as link:
        snapshot, report = receive(receiver, announced(newest), [source_at(link.address)])
    assert snapshot.map(FULL) == newest.map(FULL)
    assert report.fetched_bytes == newest.manifest.full.size_bytes


def test_an_interrupted_transfer_is_taken_up_where_it_was(newest, tmp_path, sender):
    with (
        new_host(tmp_path / "receiver") as receiver,
        Link(sender.server.address, ends_at(newest.manifest.full.size_bytes // 2)) as link,
        pytest.raises(WeightsError, match="pieces of full are missing"),
    ):
        receive(receiver, announced(newest), [source_at(link.address)])
    with new_host(tmp_path / "receiver") as receiver:  # another process, as far as the store can tell
        snapshot, report = receive(receiver, announced(newest), [sender.source])
        assert report.resumed_bytes > 0.3 * newest.manifest.full.size_bytes
        assert report.resumed_bytes + report.fetched_bytes == newest.manifest.full.size_bytes
        assert snapshot.map(FULL) == newest.map(FULL)


def test_a_sender_that_goes_silent_is_left_at_the_idle_timeout(newest, sender, receiver):
    with Link(sender.server.address, ends_at(newest.manifest.full.size_bytes // 2, silently=True)) as link:
        source = source_at(link.address, idle_timeout_s=0.3)
        with pytest.raises(WeightsError, match="timed out"):
            receive(receiver, announced(newest), [source], timeout_s=30)
    assert receiver.store.versions == []
