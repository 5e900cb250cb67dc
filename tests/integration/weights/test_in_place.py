"""Versions in memory: what is collected is written into again, at both ends, and in place while it comes."""

import tempfile
import time
from pathlib import Path

import pytest

from rl_agent.weights.download import fetch
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.mapped_file import is_memory
from rl_agent.weights.store.store import FULL
from tests.support.weight_links import Link, ends_at
from tests.support.weight_transfers import StateDict, announced, host, receive, source_at, with_fetch
from tests.unit.weights.weight_versions import open_store, random_state, settings

SHARED_MEMORY = Path("/dev/shm")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not SHARED_MEMORY.is_dir() or not is_memory(SHARED_MEMORY), reason="no /dev/shm"),
]

ROWS = 20_000
FETCH = with_fetch(retries=1000)


@pytest.fixture
def hosts(monkeypatch):
    monkeypatch.setattr(fetch, "MAX_WRONG_PIECES", 1000)
    monkeypatch.setattr(fetch, "RETRY_PAUSE_S", 0.01)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as root:
        sending, receiving = (
            open_store(Path(root, name), keep_versions=1) for name in ("sender", "receiver")
        )
        with host(sending) as sender, host(receiving, fetch=FETCH) as receiver:
            yield sender, receiver


def publish(sender, version):
    state = StateDict.of(random_state(version, rows=ROWS))
    return Publisher(sender.store, settings("never")).publish(version, state)


def test_the_third_version_is_received_into_the_memory_of_the_first(hosts):
    sender, receiver = hosts
    inodes = []
    for version in (1, 2, 3, 4):
        sent = publish(sender, version)
        got, _ = receive(receiver, announced(sent), [sender.source])
        assert got.map(FULL) == sent.map(FULL)
        inodes.append((sent.path(FULL).stat().st_ino, got.path(FULL).stat().st_ino))
    assert inodes[2:] == inodes[:2]
    assert inodes[0] != inodes[1]


def test_wrong_bytes_that_were_received_in_place_are_replaced(hosts):
    sender, receiver = hosts
    for version in (1, 2):
        receive(receiver, announced(publish(sender, version)), [sender.source])
    sent, left = publish(sender, 3), [8]

    def flip(_, content, passed):
        """Flip a bit in the middle of what is too long to be a frame."""
        if passed < 100_000 or len(content) < 3000 or not left[0]:
            return content
        left[0] -= 1
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]

    with Link(sender.server.address, flip) as link:
        got, report = receive(receiver, announced(sent), [source_at(link.address)])
    assert sum(source.wrong_pieces for source in report.by_source.values()) > 0
    assert got.map(FULL) == sent.map(FULL)


def test_memory_that_is_read_is_not_written_into(hosts):
    sender, receiver = hosts
    got, _ = receive(receiver, announced(publish(sender, 1)), [sender.source])
    read = got.map(FULL)
    before = bytes(read)
    for version in (2, 3, 4):
        receive(receiver, announced(publish(sender, version)), [sender.source])
    assert bytes(read) == before


def test_versions_being_given_on_are_not_written_into(hosts):
    """The sender's own mapping outlives a version: only who has the file open keeps its bytes."""
    sender, _ = hosts
    publish(sender, 1)
    with sender.catalog.open(1, FULL) as offer:
        before = bytes(offer.view)
        for version in (2, 3, 4):
            publish(sender, version)
        assert bytes(offer.view) == before


def test_memory_of_a_version_of_another_size_is_used_again(hosts):
    sender, receiver = hosts
    for version, rows in enumerate((ROWS, ROWS, 2 * ROWS, ROWS // 2, ROWS), 1):
        state = StateDict.of(random_state(version, rows=rows))
        sent = Publisher(sender.store, settings("never")).publish(version, state)
        got, _ = receive(receiver, announced(sent), [sender.source])
        assert got.map(FULL) == sent.map(FULL)


@pytest.mark.parametrize("versions_before", [2, 0], ids=["received in place", "into new memory"])
def test_a_sender_that_goes_silent_beside_another_costs_a_moment(hosts, versions_before):
    """A stopped process is like that: its connections stay, and nothing comes."""
    sender, receiver = hosts
    for version in range(1, 1 + versions_before):
        receive(receiver, announced(publish(sender, version)), [sender.source])
    sent = publish(sender, 3)
    began = time.monotonic()
    silence = ends_at(sent.manifest.full.size_bytes // 2, silently=True)
    with Link(sender.server.address, silence) as link:
        silent = source_at(link.address, idle_timeout_s=60.0)
        snapshot, report = receive(receiver, announced(sent), [silent, sender.source], timeout_s=60)
    assert snapshot.map(FULL) == sent.map(FULL)
    assert report.by_source[str(silent)].pieces > 0
    assert time.monotonic() - began < 50  # and not 60, when the silent one is given up
