"""A weight server: what it gives, to how many, and how fast."""

import threading
import time
from contextlib import ExitStack

from rl_agent.weights.publish.publish import Publisher
from tests.integration.weights.conftest import ROWS
from tests.support.weight_transfers import (
    StateDict,
    announced,
    capped_copy,
    hold,
    new_host,
    receive,
    with_fetch,
)
from tests.unit.weights.weight_versions import random_state, settings


def test_receivers_with_peers_take_about_one_copy_from_the_sender(newest, tmp_path, sender):
    patient = with_fetch(retries=1000)  # with peers that begin later
    with ExitStack() as stack:
        hosts = [stack.enter_context(new_host(tmp_path / name, fetch=patient)) for name in "abcd"]

        def fetch(receiving):
            peers = [other.source for other in hosts if other is not receiving]
            receive(receiving, announced(newest), [slow.source, *peers])

        with capped_copy(tmp_path / "slow", sender, bytes_per_s=2e5) as slow:
            threads = [threading.Thread(target=fetch, args=(receiving,)) for receiving in hosts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            sent = slow.server.sent_bytes
        assert all(receiving.store.versions == [3] for receiving in hosts)
        assert sent < 2 * newest.manifest.full.size_bytes


def test_sent_bytes_are_counted_by_transport(newest, sender, receiver):
    before = sender.server.sent
    receive(receiver, announced(newest), [sender.source])
    sent = sender.server.sent.since(before)
    assert (sent.tcp + sent.in_host, sent.paired) == (newest.manifest.full.size_bytes, 0)
    assert sender.server.sent_bytes == newest.manifest.full.size_bytes


def test_a_cap_on_the_sender_holds_over_all_its_connections(newest, tmp_path, sender, receiver):
    with capped_copy(tmp_path / "slow", sender, bytes_per_s=2e5) as slow:
        began = time.monotonic()
        receive(receiver, announced(newest), [slow.source])
        took_s = time.monotonic() - began
    assert took_s > 0.8 * newest.manifest.full.size_bytes / 2e5


def test_a_version_published_while_others_fetch_disturbs_neither(sender, receiver):
    """The old one is collected only when nobody reads it, and the new one is there at once."""
    Publisher(sender.store, settings()).publish(4, StateDict.of(random_state(4, rows=ROWS)))
    receive(receiver, announced(hold(sender, 2)), [sender.source])
    receive(receiver, announced(hold(sender, 4)), [sender.source])
    assert receiver.store.versions == [2, 4]
