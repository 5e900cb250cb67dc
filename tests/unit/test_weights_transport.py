"""Versions travel whole and verified between hosts that share a token, from whoever has them."""

import asyncio
import contextlib
import socket
import threading
import time
from dataclasses import replace

import pytest
from aiohttp import web

from rl_agent.errors import WeightsError
from rl_agent.weights.channel import connect
from rl_agent.weights.deadline import Deadline
from rl_agent.weights.http_server import http_app
from rl_agent.weights.pieces import PieceSet
from rl_agent.weights.publish import Publisher
from rl_agent.weights.receive import Announcement
from rl_agent.weights.source_http import HttpSource
from rl_agent.weights.sources import StateDict
from rl_agent.weights.store import DELTA, FULL
from tests.unit.weight_versions import publish_steps, random_state, settings
from tests.weight_transfers import (
    SERVER,
    Link,
    announced,
    capped_copy,
    cut_at,
    flip_at,
    flip_often,
    host,
    new_host,
    receive,
    source_at,
    with_fetch,
)

ROWS = 1500
"""About 25 pieces."""


@pytest.fixture
def sender(tmp_path):
    with host(publish_steps(tmp_path / "sender", 3, rows=ROWS)) as running:
        yield running


@pytest.fixture
def receiver(tmp_path):
    with new_host(tmp_path / "receiver") as running:
        yield running


def hold(running, weight_version):
    with running.store.hold(weight_version) as snapshot:
        return snapshot


def test_a_version_arrives_bit_for_bit(sender, receiver):
    newest = sender.store.newest
    snapshot, report = receive(receiver, announced(newest), [sender.source])
    assert snapshot.map(FULL) == newest.map(FULL)
    assert snapshot.manifest.digest == newest.manifest.digest
    assert report.deltas == 0
    assert report.fetched_bytes == newest.manifest.full.size_bytes == sender.server.sent_bytes


def test_a_receiver_of_the_version_before_takes_only_the_delta(sender, receiver):
    receive(receiver, announced(hold(sender, 2)), [sender.source])
    snapshot, report = receive(receiver, announced(hold(sender, 3)), [sender.source])
    assert report.deltas == 1
    assert report.fetched_bytes == hold(sender, 3).manifest.delta.blob.size_bytes
    assert snapshot.map(FULL) == hold(sender, 3).map(FULL)


def test_a_receiver_further_behind_takes_a_chain_of_deltas_and_keeps_the_last_for_others(sender, receiver):
    receive(receiver, announced(hold(sender, 1)), [sender.source])
    snapshot, report = receive(receiver, announced(hold(sender, 3)), [sender.source])
    assert report.deltas == 2
    assert snapshot.map(FULL) == hold(sender, 3).map(FULL)
    assert snapshot.map(DELTA) == hold(sender, 3).map(DELTA)
    assert {path.name for path in snapshot.folder.iterdir()} == {"manifest.json", "full.bin", "delta.bin"}


def test_a_receiver_too_far_behind_takes_the_full_version(tmp_path, sender):
    with new_host(tmp_path / "receiver", max_deltas=1) as receiver:
        receive(receiver, announced(hold(sender, 1)), [sender.source])
        assert receive(receiver, announced(hold(sender, 3)), [sender.source])[1].deltas == 0


def test_a_delta_that_gives_other_weights_is_followed_by_a_full_transfer(sender, receiver):
    receive(receiver, announced(hold(sender, 2)), [sender.source])
    path = hold(receiver, 2).path(FULL)
    content = bytearray(path.read_bytes())
    content[100] ^= 1  # the receiver's memory went bad
    path.write_bytes(content)
    snapshot, report = receive(receiver, announced(hold(sender, 3)), [sender.source])
    assert report.deltas == 0
    assert snapshot.map(FULL) == hold(sender, 3).map(FULL)


def test_a_receiver_gives_on_what_it_has(tmp_path, sender, receiver):
    receive(receiver, announced(sender.store.newest), [sender.source])
    with new_host(tmp_path / "second") as second:
        snapshot, _ = receive(second, announced(sender.store.newest), [receiver.source])
        assert snapshot.map(FULL) == sender.store.newest.map(FULL)


def test_a_receiver_gives_on_verified_pieces_before_it_has_all(tmp_path, sender):
    """Two receivers, each behind a link that carries half a version and then breaks, complete each other."""
    newest = sender.store.newest
    half = newest.manifest.full.size_bytes // 2 + 40_000
    patient = with_fetch(retries=1000)
    with (
        new_host(tmp_path / "one", fetch=patient) as one,
        new_host(tmp_path / "two", fetch=patient) as two,
        Link(sender.server.address, lambda _, content, before: content if before < half else None) as left,
        Link(sender.server.address, lambda _, content, before: content if before < half else None) as right,
    ):
        results = []

        def fetch(receiving, link, other):
            results.append(receive(receiving, announced(newest), [source_at(link.address), other.source]))

        threads = [
            threading.Thread(target=fetch, args=arguments)
            for arguments in ((one, left, two), (two, right, one))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [snapshot.map(FULL) == newest.map(FULL) for snapshot, _ in results] == [True, True]


def test_receivers_with_peers_take_about_one_copy_from_the_sender(tmp_path, sender):
    newest = sender.store.newest
    with (
        new_host(tmp_path / "a") as a,
        new_host(tmp_path / "b") as b,
        new_host(tmp_path / "c") as c,
        new_host(tmp_path / "d") as d,
    ):
        hosts = [a, b, c, d]

        def fetch(receiving):
            peers = [other.source for other in hosts if other is not receiving]
            receive(receiving, announced(newest), [slow.source, *peers])

        with capped_copy(tmp_path / "slow", sender, bytes_per_s=1e6) as slow:
            threads = [threading.Thread(target=fetch, args=(receiving,)) for receiving in hosts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            sent = slow.server.sent_bytes
        assert all(receiving.store.versions == [3] for receiving in hosts)
        assert sent < 2 * newest.manifest.full.size_bytes


def test_a_cap_on_the_sender_holds_over_all_its_connections(tmp_path, sender, receiver):
    newest = sender.store.newest
    with capped_copy(tmp_path / "slow", sender, bytes_per_s=2e5) as slow:
        began = time.monotonic()
        receive(receiver, announced(newest), [slow.source])
        took_s = time.monotonic() - began
    assert took_s > 0.8 * newest.manifest.full.size_bytes / 2e5


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


def test_a_cut_connection_is_made_again_and_what_was_verified_is_not_sent_again(sender, receiver):
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
        assert time.monotonic() - began < 10
    assert receiver.store.versions == []


def test_a_transfer_that_is_told_to_stop_ends_and_leaves_the_old_version(tmp_path, sender, receiver):
    receive(receiver, announced(hold(sender, 1)), [sender.source])
    stop = threading.Event()
    with capped_copy(tmp_path / "slow", sender, bytes_per_s=1e4) as slow:
        timer = threading.Timer(0.2, stop.set)
        timer.start()
        with pytest.raises(WeightsError, match="told to stop"):
            receive(receiver, announced(hold(sender, 3)), [slow.source], stop=stop)
        timer.join()
    assert receiver.store.versions == [1]


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


def test_an_older_version_than_the_newest_here_is_refused_before_anything_is_sent(sender, receiver):
    receive(receiver, announced(hold(sender, 3)), [sender.source])
    sent = sender.server.sent_bytes
    with pytest.raises(WeightsError, match="version 2 is older than 3"):
        receive(receiver, announced(hold(sender, 2)), [sender.source])
    assert sender.server.sent_bytes == sent
    assert receiver.store.versions == [3]


def test_a_receiver_without_the_token_gets_nothing_and_one_with_it_notices_an_impostor(sender, receiver):
    stranger = source_at(sender.server.address, token=b"another")
    with pytest.raises(WeightsError, match="the sender has another token"):
        receive(receiver, announced(sender.store.newest), [stranger])
    assert sender.server.sent_bytes == 0


@pytest.mark.parametrize("first_bytes", [b"GET / HTTP/1.1\r\n" + bytes(100), b"RLWEIGH1" + bytes(32 + 32)])
def test_who_does_not_prove_the_token_is_cut_off_at_once(tmp_path, first_bytes):
    patient = replace(SERVER, idle_timeout_s=600.0)
    with (
        host(publish_steps(tmp_path, 1), server=patient) as sender,
        socket.create_connection(sender.server.address, timeout=20) as stranger,
    ):
        stranger.sendall(first_bytes)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it had not read all that was sent
            while part := stranger.recv(4096):
                answer += part
    assert len(answer) in (0, 64)  # a nonce and a proof, which say nothing of the token


def test_a_piece_that_is_not_verified_yet_is_not_given(sender, receiver):
    manifest = hold(sender, 3).manifest
    pieces = PieceSet(len(manifest.full.digests))
    pieces.add(1)
    path = receiver.store.root / "unfinished"
    path.write_bytes(bytes(manifest.full.size_bytes))
    connection = receiver.source.connection()
    connection.open(Deadline.after(10))
    target = memoryview(bytearray(4096))
    with receiver.shelf.partial(manifest, FULL, path, pieces):
        connection.read_piece(3, FULL, 1, 4096, target, Deadline.after(10))
        for index in (0, 2, -1, 10**6):
            with pytest.raises(WeightsError, match="has no verified piece"):
                connection.read_piece(3, FULL, index, 0, target, Deadline.after(10))
    connection.close()


@pytest.mark.parametrize("request_text", [b"{", b"[]", b'{"op": "exec"}', b'{"op": "piece", "version": "3"}'])
def test_a_request_that_makes_no_sense_is_answered_or_cut_off_and_others_go_on(
    sender, receiver, request_text
):
    deadline = Deadline.after(10)
    with socket.socket() as connection:
        channel = connect(connection, sender.server.address, sender.source.token, deadline, 5.0)
        channel.send(request_text, deadline)
        with contextlib.suppress(ConnectionResetError):
            assert b"error" in channel.receive(deadline)
    receive(receiver, announced(sender.store.newest), [sender.source])


def test_a_frame_that_is_sent_twice_is_refused(sender):
    deadline = Deadline.after(10)
    with socket.socket() as connection:
        channel = connect(connection, sender.server.address, sender.source.token, deadline, 5.0)
        channel.send(b'{"op": "versions"}', deadline)
        channel.receive(deadline)
        channel._sent -= 1
        channel.send(b'{"op": "versions"}', deadline)
        with pytest.raises(OSError):
            channel.receive(deadline)


def test_a_server_takes_no_more_connections_than_it_may(tmp_path):
    store = publish_steps(tmp_path / "sender", 1)
    with host(store, server=replace(SERVER, max_connections=1)) as sender:
        first, second = sender.source.connection(), sender.source.connection()
        first.open(Deadline.after(10))
        with pytest.raises(OSError):
            second.open(Deadline.after(10))
        first.close()
        second.close()


@pytest.fixture
def http_address(sender):
    """The sender's store over HTTP, in an event loop of its own."""
    loop, started, addresses = asyncio.new_event_loop(), threading.Event(), []

    async def serve():
        runner = web.AppRunner(http_app(sender.store, "token"), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses.append(runner.addresses[0])
        stopping = asyncio.Event()
        addresses.append(stopping)
        started.set()
        await stopping.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait(30)
    yield f"http://127.0.0.1:{addresses[0][1]}"
    loop.call_soon_threadsafe(addresses[1].set)
    thread.join(30)
    loop.close()


def test_http_serves_as_a_fallback_for_what_the_sources_cannot_give(sender, receiver, http_address):
    fallback = HttpSource(http_address, "token", 5.0)
    newest = sender.store.newest
    half = newest.manifest.full.size_bytes // 2
    with Link(sender.server.address, lambda _, content, before: content if before < half else None) as link:
        snapshot, report = receive(
            receiver, announced(newest), [source_at(link.address)], fallbacks=[fallback]
        )
    assert snapshot.map(FULL) == newest.map(FULL)
    assert 0 < report.by_source[http_address].pieces < len(newest.manifest.full.digests)


def test_a_delta_can_come_over_http_alone(sender, receiver, http_address):
    source = HttpSource(http_address, "token", 5.0)
    receive(receiver, announced(hold(sender, 2)), [source])
    snapshot, report = receive(receiver, announced(hold(sender, 3)), [source])
    assert report.deltas == 1
    assert snapshot.map(FULL) == hold(sender, 3).map(FULL)


def test_http_gives_nothing_without_the_token(sender, receiver, http_address):
    with pytest.raises(WeightsError, match="401"):
        receive(receiver, announced(sender.store.newest), [HttpSource(http_address, "wrong", 5.0)])


def test_only_web_addresses_are_opened(receiver):
    with pytest.raises(WeightsError, match="not an http address"):
        receive(receiver, Announcement(1, "0" * 64), [HttpSource("file:///etc", "token", 5.0)])


def test_both_kinds_of_source_list_the_versions(sender, http_address):
    expected = {version: hold(sender, version).manifest.digest for version in (1, 2, 3)}
    for source in (sender.source, HttpSource(http_address, "token", 5.0)):
        connection = source.connection()
        connection.open(Deadline.after(10))
        assert connection.versions(Deadline.after(10)) == expected
        connection.close()


def test_a_version_published_while_others_fetch_disturbs_neither(sender, receiver):
    """The old one is collected only when nobody reads it, and the new one is there at once."""
    Publisher(sender.store, settings()).publish(4, StateDict.of(random_state(4, rows=ROWS)))
    receive(receiver, announced(hold(sender, 2)), [sender.source])
    receive(receiver, announced(hold(sender, 4)), [sender.source])
    assert receiver.store.versions == [2, 4]
