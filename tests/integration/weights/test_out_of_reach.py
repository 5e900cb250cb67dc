"""A receiver that cannot reach who makes the versions, as behind a firewall, takes another way at once."""

import contextlib
import threading

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection import channel
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.pieces import PieceSet
from rl_agent.weights.sources.source_http import HttpSource
from rl_agent.weights.store.store import FULL
from tests.support.weight_links import Link, full_listener
from tests.support.weight_transfers import announced, hold, new_host, receive, source_at


class Firewalled:
    """A source, or the way to one, of which packets are dropped, or connections fail, while `is_shut`."""

    is_cut_at_once = True

    def __init__(self, source=None, error=None):
        self.source, self.is_shut, self.tried = source, True, 0
        self.error = error or TimeoutError("timed out")
        self.failed = threading.Event()

    def __str__(self):
        return "trainer:1"

    def connection(self):
        return self if self.is_shut else self.source.connection()

    def open(self, deadline):
        self.tried += 1
        if self.tried == 2:  # by whom the first time was noted
            self.failed.set()
        raise self.error

    def interrupt(self):
        pass

    def close(self):
        pass


@pytest.fixture
def manager(http_address):
    return HttpSource(http_address, lambda: {"Authorization": "Bearer token"}, 5.0)


def test_receivers_that_reach_only_one_another_do_not_wait_for_each_other(
    newest, tmp_path, sender, receiver, manager
):
    with new_host(tmp_path / "peer") as peer:
        empty = tmp_path / "peer" / "empty"
        empty.write_bytes(bytes(newest.manifest.full.size_bytes))
        with peer.catalog.partial(newest.manifest, FULL, empty, PieceSet(len(newest.manifest.full.digests))):
            receive(receiver, announced(newest), [Firewalled()], peers=[peer.source], fallbacks=[manager])
    assert receiver.store.newest.map(FULL) == newest.map(FULL)


def test_the_fallback_is_unused_while_the_trainer_has_another_address(newest, sender, receiver, manager):
    _, report = receive(receiver, announced(newest), [Firewalled(), sender.source], fallbacks=[manager])
    assert list(report.by_source) == [str(sender.source)]


@pytest.mark.parametrize(
    ("error", "is_left_out"),
    [
        (TimeoutError("timed out"), True),
        (ConnectionResetError("there are too many"), False),
        (WeightsError("the sender has another token"), False),
    ],
)
def test_an_address_at_which_nobody_answers_is_left_out_of_the_next_fetch(
    sender, receiver, manager, error, is_left_out
):
    gone, half = Firewalled(error=error), hold(sender, 2).manifest.full.size_bytes // 2

    def not_before_it_failed(_, content, before):
        return content if before < half or gone.failed.wait(20) else None

    with Link(sender.server.address, not_before_it_failed) as link:
        sources = [source_at(link.address), gone]
        _, report = receive(receiver, announced(hold(sender, 2)), sources, fallbacks=[manager])
        assert list(report.by_source) == [str(source) for source in sources]
        _, report = receive(receiver, announced(hold(sender, 3)), sources, fallbacks=[manager])
    assert list(report.by_source) == [str(source) for source in sources[: 1 if is_left_out else 2]]


def test_a_failed_transfer_forgets_the_unreachable_peers(sender, receiver):
    newest = announced(sender.store.newest)
    trainer, manager = Firewalled(sender.source), Firewalled()
    with pytest.raises(WeightsError, match="timed out"):
        receive(receiver, newest, [trainer], fallbacks=[manager])
    trainer.is_shut = False
    receive(receiver, newest, [trainer], fallbacks=[manager])
    assert receiver.store.newest.manifest.digest == newest.digest


def test_to_connect_takes_no_longer_than_to_be_known(monkeypatch):
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.2)
    deadline = Deadline.after(30)
    with full_listener() as listener:
        connection = source_at(listener.getsockname(), idle_timeout_s=60).connection()
        with contextlib.closing(connection), pytest.raises(TimeoutError):
            connection.open(deadline)
    assert not deadline.is_over
