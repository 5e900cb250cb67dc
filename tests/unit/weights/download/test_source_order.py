"""Sources are asked in an order, each for what those before could not give."""

import threading

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.source_order import ReceiveReport, Transfer, Upstream
from rl_agent.weights.sources.cooldown import Cooldown
from tests.support.weight_transfers import FETCH
from tests.unit.weights.weight_sources import StoreSource, raising
from tests.unit.weights.weight_versions import publish_steps


@pytest.fixture(scope="module")
def sender(tmp_path_factory):
    with publish_steps(tmp_path_factory.mktemp("sender"), 1) as store:
        yield store


failing = raising(ConnectionRefusedError("refused"))
saying_no = raising(WeightsError("has no version 1"))


class Sources:
    """Sources that note the order in which they are asked; those named in `lies` fail."""

    def __init__(self, sender, **lies):
        self.names, self._sender, self._lies = [], sender, lies
        self.cooldown, self.stop = Cooldown(clock=lambda: 0.0), threading.Event()

    def source(self, name):
        def open_(*arguments):
            self.names.append(name)
            return self._lies.get(name, lambda *_: None)(*arguments)

        return StoreSource(self._sender, name, {"open": open_})

    def ask(self, *upstreams, retries=0):
        self.names.clear()
        order = [Upstream(*([self.source(name) for name in names] for names in each)) for each in upstreams]
        transfer = Transfer(FETCH, order, self.cooldown, Deadline.after(30), self.stop, ReceiveReport())
        return transfer.ask(
            lambda connection, deadline: connection.manifest(1, None, deadline), retries=retries
        )


def test_upstreams_are_asked_in_their_order_and_the_first_answer_counts(sender):
    sources = Sources(sender, a=saying_no, b=saying_no)
    assert sources.ask((["a"], ["b"]), (["c"], []), (["d"], [])) == sender.newest.manifest
    assert sources.names == ["a", "b", "c"]


def test_silent_sources_are_skipped_for_a_while_but_not_the_last_upstream(sender):
    sources = Sources(sender, a=failing, last=failing)
    with pytest.raises(WeightsError, match=r"a: .*refused.*; last: .*refused"):
        sources.ask((["a"], []), (["last"], []))
    assert "a" in sources.cooldown and "last" not in sources.cooldown
    with pytest.raises(WeightsError):
        sources.ask((["a"], []), (["last"], []))
    assert sources.names == ["last"]


def test_a_refusing_source_is_asked_again(sender):
    sources = Sources(sender, a=saying_no, last=saying_no)
    for _ in range(2):
        with pytest.raises(WeightsError, match="a: has no version 1; last: has no version 1"):
            sources.ask((["a"], []), (["last"], []))
        assert sources.names == ["a", "last"]


def test_peers_of_an_upstream_with_skipped_origins_are_asked_with_the_next(sender):
    sources = Sources(sender, a=saying_no, last=saying_no, peer=saying_no)
    sources.cooldown.add("a")
    with pytest.raises(WeightsError):
        sources.ask((["a"], ["peer"]), (["last"], []))
    assert sources.names == ["last", "peer"]


def test_all_are_asked_at_each_try_and_a_cancelled_transfer_asks_nobody(sender):
    sources = Sources(sender, a=saying_no)
    with pytest.raises(WeightsError):
        sources.ask((["a"], []), retries=2)
    assert sources.names == ["a"] * 3
    sources.stop.set()
    with pytest.raises(WeightsError, match="was cancelled"):
        sources.ask((["a"], []))
    assert not sources.names


def test_without_a_source_the_error_says_so(sender):
    with pytest.raises(WeightsError, match="there is no source"):
        Sources(sender).ask(([], []))
