"""Fixtures of the tests of sources."""

import threading

import pytest

from tests.unit.weights.weight_versions import publish_steps


@pytest.fixture(scope="module")
def sender(tmp_path_factory):
    with publish_steps(tmp_path_factory.mktemp("sender"), 1, rows=300) as store:
        yield store


@pytest.fixture
def never(monkeypatch):
    """A wait that no interrupt ends, until the test does."""
    monkeypatch.setattr("rl_agent.weights.sources.asking.GRACE_S", 0.05)
    monkeypatch.setattr("rl_agent.weights.download.fetch.GRACE_S", 0.05)
    released = threading.Event()

    def wait(right, *_):
        released.wait(60)
        return right

    yield wait
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith(("fetch-", "ask-")):
            thread.join(30)
