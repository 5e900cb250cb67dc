"""Links that lie, break, stall or are stopped: what arrives is right, or nothing arrives."""

import threading
import time

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.store.store import FULL
from tests.support.weight_links import Link, cut_at, flip_at, flip_often
from tests.support.weight_transfers import announced, capped_copy, hold, new_host, receive, source_at


def test_one_flipped_byte_costs_one_piece_and_is_never_published(sender, receiver):
    newest = sender.store.newest
    position = newest.manifest.full.size_bytes // 2
    with Link(sender.server.address, flip_at(position)) as link:
        snapshot, _ = receive(receiver, announced(newest), [source_at(link.address)])
    assert snapshot.map(FULL) == newest.map(FULL)
    assert sender.server.sent_bytes <= newest.manifest.full.size_bytes + 2 * 2 * 4096


def test_a_source_that_keeps_giving_wrong_bytes_is_asked_no_more(sender, receiver):
    with (
        Link(sender.server.address, flip_often(seed=1, share=1.0)) as link,
        pytest.raises(WeightsError),
    ):
        receive(receiver, announced(sender.store.newest), [source_at(link.address)])
    assert receiver.store.versions == []


def test_a_cut_connection_reconnects_and_resends_no_verified_piece(sender, receiver):
    newest = sender.store.newest
    with Link(sender.server.address, cut_at(newest.manifest.full.size_bytes // 2)) as link:
        snapshot, report = receive(receiver, announced(newest), [source_at(link.address)])
    assert snapshot.map(FULL) == newest.map(FULL)
    assert report.fetched_bytes == newest.manifest.full.size_bytes


def test_an_interrupted_transfer_is_taken_up_where_it_was(tmp_path, sender):
    newest = sender.store.newest
    half = newest.manifest.full.size_bytes // 2

    def stuck(_, content, before):
        return content if before < half else None

    with (
        new_host(tmp_path / "receiver") as receiver,
        Link(sender.server.address, stuck) as link,
        pytest.raises(WeightsError, match="pieces of full are missing"),
    ):
        receive(receiver, announced(newest), [source_at(link.address)])
    with new_host(tmp_path / "receiver") as receiver:  # another process, as far as the store can tell
        snapshot, report = receive(receiver, announced(newest), [sender.source])
        assert report.resumed_bytes > 0.3 * newest.manifest.full.size_bytes
        assert report.resumed_bytes + report.fetched_bytes == newest.manifest.full.size_bytes
        assert snapshot.map(FULL) == newest.map(FULL)


@pytest.mark.parametrize("sources", [0, 1])
def test_without_a_source_that_answers_it_fails_at_once_and_says_why(receiver, sources):
    nobody = source_at(("127.0.0.1", 1))
    with pytest.raises(WeightsError, match="Connection refused" if sources else "there is no source"):
        receive(receiver, Announcement(1, "0" * 64), [nobody] * sources)


def test_a_sender_that_goes_silent_is_left_at_the_idle_timeout(sender, receiver):
    newest = sender.store.newest
    half = newest.manifest.full.size_bytes // 2

    def silent(_, content, before):
        return content if before < half else b""

    with Link(sender.server.address, silent) as link:
        source = source_at(link.address, idle_timeout_s=0.3)
        with pytest.raises(WeightsError, match="timed out"):
            receive(receiver, announced(newest), [source], timeout_s=30)
    assert receiver.store.versions == []


def test_a_transfer_ends_at_its_deadline(tmp_path, sender, receiver):
    with capped_copy(tmp_path / "slow", sender, bytes_per_s=1e4) as slow:
        began = time.monotonic()
        with pytest.raises(WeightsError, match="at the deadline"):
            receive(receiver, announced(sender.store.newest), [slow.source], timeout_s=0.5)
        assert time.monotonic() - began < 60  # at that rate it would take minutes
    assert receiver.store.versions == []


def test_a_transfer_that_is_told_to_stop_ends_and_leaves_the_old_version(tmp_path, sender, receiver):
    receive(receiver, announced(hold(sender, 1)), [sender.source])
    stop = threading.Event()
    with capped_copy(tmp_path / "slow", sender, bytes_per_s=1e4) as slow:
        timer = threading.Timer(0.2, stop.set)
        timer.start()
        with pytest.raises(WeightsError, match="cancelled"):
            receive(receiver, announced(hold(sender, 3)), [slow.source], stop=stop)
        timer.join()
    assert receiver.store.versions == [1]
