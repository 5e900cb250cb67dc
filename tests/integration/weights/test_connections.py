"""Clients with the token connect and are answered; HTTP is the other way to the same versions."""

import json
import socket

import numpy as np
import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.channel import connect
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.pieces import PieceSet, bits_to_text
from rl_agent.weights.sources.source_http import HttpSource
from rl_agent.weights.store.store import FULL
from tests.integration.weights.test_source_http import bearer
from tests.support.weight_links import Link, ends_at
from tests.support.weight_transfers import announced, hold, receive, source_at


def test_the_token_is_needed_to_receive_and_unmasks_an_impostor(sender, receiver):
    stranger = source_at(sender.server.address, token=b"another")
    with pytest.raises(WeightsError, match="the sender has another token"):
        receive(receiver, announced(sender.store.newest), [stranger])
    assert sender.server.sent_bytes == 0


def test_a_piece_that_is_not_verified_yet_is_not_given(sender, receiver):
    manifest = hold(sender, 3).manifest
    pieces = PieceSet(len(manifest.full.digests))
    pieces.add(1)
    path = receiver.store.root / "unfinished"
    path.write_bytes(bytes(manifest.full.size_bytes))
    connection = receiver.source.connection()
    connection.open(Deadline.after(10))
    target = memoryview(bytearray(4096))
    with receiver.catalog.partial(manifest, FULL, path, pieces):
        connection.read_piece(3, FULL, 1, 4096, target, Deadline.after(10))
        for index in (0, 2, 10**6, 2**62):
            with pytest.raises(WeightsError, match="has no verified piece"):
                connection.read_piece(3, FULL, index, 0, target, Deadline.after(10))
    connection.close()


RECOMMEND = '{"op": "recommend", "version": 3, "blob": "full", "wanted": WANTED, '


@pytest.mark.parametrize(
    "request_text",
    [
        "{",
        pytest.param("[" * 10**6, id="deep"),
        '{"op": "exec"}',
        RECOMMEND + '"limit": null}',
        RECOMMEND + '"wait_s": NaN}',
        RECOMMEND + '"wait_s": -1}',
        RECOMMEND + '"limit": 1' + "0" * 5000 + "}",
        '{"op": "piece", "version": 3, "blob": "full", "index": -1}',
        '{"op": "manifest", "version": 3, "and": 4}',
    ],
)
def test_a_nonsense_request_is_answered_or_cut_off_and_others_go_on(sender, receiver, request_text):
    assert "invalid request" in ask(sender, request_text)["error"]
    receive(receiver, announced(sender.store.newest), [sender.source])


@pytest.mark.parametrize("field", ['"limit": 9000000000000000000', '"wait_s": 1e300'])
def test_a_number_that_is_too_large_is_taken_as_one_that_is_allowed(sender, field):
    assert ask(sender, f"{RECOMMEND}{field}}}") == {"indices": []}


def ask(sender, request_text):
    """The server's answer, None if it cuts off."""
    deadline = Deadline.after(10)
    wanted = bits_to_text(np.zeros(len(hold(sender, 3).manifest.full.digests), np.bool_))
    with socket.socket() as connection:
        channel = connect(connection, sender.server.address, sender.source.token, deadline, 5.0)
        channel.send(request_text.replace("WANTED", f'"{wanted}"').encode(), deadline)
        try:
            return json.loads(channel.receive(deadline))
        except ConnectionResetError:
            return None


def test_a_peer_without_the_version_is_named_even_if_others_were_asked(sender, receiver, http_address):
    refused = HttpSource(http_address, bearer("wrong"), 5.0)
    half = sender.store.newest.manifest.full.size_bytes // 2
    with Link(sender.server.address, ends_at(half)) as link:
        cut = source_at(link.address)
        with pytest.raises(WeightsError, match=f"{cut}: .*closed.*{refused}: .*401"):
            receive(receiver, announced(sender.store.newest), [cut], fallbacks=[refused])
