"""A sender with several addresses is one sender: one catalog, one limit, one cap."""

import socket
import threading
from dataclasses import replace

import pytest

from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.store.store import FULL
from tests.integration.weights.conftest import ROWS
from tests.support.weight_links import Link
from tests.support.weight_transfers import SERVER, announced, host, receive, source_at
from tests.unit.weights.weight_versions import open_store, publish_steps

HOSTS = ("127.0.0.1", "127.0.0.2")
TWO = replace(SERVER, hosts=HOSTS)


@pytest.fixture
def sender(tmp_path):
    with host(publish_steps(tmp_path / "sender", 1, rows=ROWS), server=TWO) as running:
        yield running


def sources_of(sender):
    return [source_at(address) for address in sender.server.addresses]


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_an_address_may_be_one_of_ipv6(tmp_path, receiver):
    store = publish_steps(tmp_path / "sender", 1)
    with host(store, server=replace(SERVER, hosts=("::1", "127.0.0.1"))) as sender:
        assert sender.server.sources[0].startswith("tcp://[::1]:")
        receive(receiver, announced(store.newest), sources_of(sender)[:1])
    assert receiver.store.newest.manifest.digest == store.newest.manifest.digest


class SynchronizedLink:
    """Passes on a quarter of the bytes, and no more before the other link has done so, too."""

    def __init__(self, size_bytes):
        self.quarter = size_bytes // 4
        self.has_passed = threading.Event()
        self.other = None

    def __call__(self, _, content, before):
        if before < self.quarter:
            return content
        self.has_passed.set()
        return self.rest(content)

    def rest(self, content):
        return content if self.other.has_passed.wait(20) else None


class CutForGood(SynchronizedLink):
    def rest(self, content):
        return None


@pytest.mark.parametrize("second", [SynchronizedLink, CutForGood])
def test_a_version_comes_over_both_addresses_even_if_one_is_cut(newest, sender, receiver, second):
    size_bytes = newest.manifest.full.size_bytes
    faults = [SynchronizedLink(size_bytes), second(size_bytes)]
    faults[0].other, faults[1].other = faults[1], faults[0]
    addresses = sender.server.addresses
    assert [address[0] for address in addresses] == [*HOSTS]
    with Link(addresses[0], faults[0]) as first_link, Link(addresses[1], faults[1]) as second_link:
        links = [source_at(link.address) for link in (first_link, second_link)]
        snapshot, report = receive(receiver, announced(newest), links)
    assert snapshot.map(FULL) == newest.map(FULL)
    assert all(report.by_source[str(link)].pieces for link in links)
    if second is SynchronizedLink:
        assert sender.server.sent_bytes == size_bytes


def test_connections_to_all_addresses_count_until_they_end(tmp_path):
    store = publish_steps(tmp_path / "sender", 1)
    with host(store, server=replace(TWO, max_connections=1)) as sender:
        sources = sources_of(sender)
        first, second, third = (sources[at % len(sources)].connection() for at in range(3))
        first.open(Deadline.after(10))
        first.manifest(1, None, Deadline.after(10))
        with pytest.raises(OSError):
            second.open(Deadline.after(0.2))
        first.close()
        second.close()
        third.open(Deadline.after(10))
        third.close()


def test_a_server_that_lacks_one_address_listens_at_none(tmp_path):
    with host(open_store(tmp_path / "one")) as running:
        port = running.server.address[1]  # free at the other address, and taken here
        both = replace(TWO, port=port, hosts=HOSTS[::-1])
        with pytest.raises(OSError), host(open_store(tmp_path / "two"), server=both):
            pass
        with host(open_store(tmp_path / "three"), server=replace(both, hosts=HOSTS[1:])) as alone:
            assert alone.server.address == (HOSTS[1], port)
