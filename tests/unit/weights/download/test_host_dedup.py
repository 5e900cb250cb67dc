"""Engines of one host take a version from each other by links, and one of them fetches it."""

import threading
from pathlib import Path

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.host_dedup import adopt, turn
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.store.store import FULL
from tests.unit.weights.weight_sources import announced_of
from tests.unit.weights.weight_versions import open_store, publish_steps


@pytest.fixture
def first(tmp_path):
    with publish_steps(tmp_path / "first", 2) as store:
        yield store


@pytest.fixture
def second(tmp_path):
    with open_store(tmp_path / "second") as store:
        yield store


def test_a_version_of_another_store_is_adopted_without_a_copy(first, second):
    adopted = adopt(second, [second.root, first.root], announced_of(first, 2), threads=1)
    with first.hold(2) as theirs:
        assert adopted.path(FULL).samefile(theirs.path(FULL))
        assert second.newest.manifest.digest == theirs.manifest.digest


def test_a_version_that_is_collected_while_it_is_linked_is_not_adopted(tmp_path, second, monkeypatch):
    with publish_steps(tmp_path / "first", 1) as first:
        wanted, link = announced_of(first, 1), Path.hardlink_to

        def link_late(path, target):
            """The kernel has found the target; its store writes into it again before there is a link."""
            link(path, target.rename(tmp_path / "written again"))

        monkeypatch.setattr(Path, "hardlink_to", link_late)
        assert adopt(second, [first.root], wanted, threads=1) is None
        assert second.versions == []


def test_only_newer_versions_of_the_same_content_are_adopted(first, second, tmp_path):
    wanted = announced_of(first, 2)
    assert adopt(second, [tmp_path / "none", second.root], wanted, threads=1) is None
    other = Announcement(2, "0" * 64)
    assert adopt(second, [first.root], other, threads=1) is None
    assert adopt(first, [first.root], wanted, threads=1) is None


def test_one_has_the_turn_of_a_content_at_a_time(tmp_path):
    stop = threading.Event()
    with turn(tmp_path, "ab" * 32, Deadline.after(30), stop):
        refused = pytest.raises(WeightsError, match="another engine of this host was still fetching")
        with refused, turn(tmp_path, "ab" * 32, Deadline.after(0.05), stop):
            pass
        with turn(tmp_path, "cd" * 32, Deadline.after(0.05), stop):
            pass
        stop.set()
        refused = pytest.raises(WeightsError, match="was cancelled")
        with refused, turn(tmp_path, "ab" * 32, Deadline.after(30), stop):
            pass
    with turn(tmp_path, "ab" * 32, Deadline.after(5), threading.Event()):
        pass
    assert not list(tmp_path.iterdir())
