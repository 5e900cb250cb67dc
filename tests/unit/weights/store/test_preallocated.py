"""Memory for the next version is prepared before it is needed."""

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store import preallocated
from rl_agent.weights.store.mapped_file import DraftFile, is_memory
from rl_agent.weights.store.store import FULL, PREALLOCATED
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_sources import raising
from tests.unit.weights.weight_versions import open_store, random_state, settings, state_of


def test_the_memory_of_the_next_version_is_taken_in_the_background(memory):
    with open_store(memory, keep_versions=2) as store:
        publisher = Publisher(store, settings("never"))
        full = publisher.publish(1, StateDict.of(random_state(1))).path(FULL)
        store._preallocated._preparing.join(30)
        status = (memory / PREALLOCATED).stat()
        assert status.st_size == full.stat().st_size <= 512 * status.st_blocks
        second = publisher.publish(2, StateDict.of(random_state(2)))
        assert second.path(FULL).stat().st_ino == status.st_ino
        assert state_of(store.newest)["norm.weight"].equal(random_state(2)["norm.weight"])
        store._preallocated._preparing.join(30)
        publisher.publish(3, StateDict.of(random_state(3)))  # collects the first: no new memory is taken
        assert store._preallocated._preparing is None
        assert store.versions == [2, 3]


def test_a_version_is_written_into_memory_that_is_prepared_in_part(memory, monkeypatch):
    monkeypatch.setattr(preallocated, "_STEP_BYTES", 4096)
    with open_store(memory, keep_versions=2) as store:
        publisher = Publisher(store, settings("never"))
        publisher.publish(1, StateDict.of(random_state(1, rows=3000)))
        publisher.publish(2, StateDict.of(random_state(2, rows=3000)))
        assert state_of(store.newest)["embed.weight"].equal(random_state(2, rows=3000)["embed.weight"])


def test_no_room_for_the_next_version_is_reported_when_it_is_written(memory, monkeypatch):
    with open_store(memory, keep_versions=2) as store:
        publisher = Publisher(store, settings("never"))
        with monkeypatch.context() as without_room:
            without_room.setattr(DraftFile, "write", raising(WeightsError("no room")))
            store._preallocated.prepare(2**20)
            store._preallocated._preparing.join(30)
        assert not (memory / PREALLOCATED).exists()
        publisher.publish(1, StateDict.of(random_state(1)))
        assert store.versions == [1]


def test_on_a_disk_no_room_is_taken_before_it_is_wanted(tmp_path):
    if is_memory(tmp_path):
        pytest.skip("this folder lies in memory")
    with open_store(tmp_path, keep_versions=2) as store:
        Publisher(store, settings("never")).publish(1, StateDict.of(random_state(1)))
        assert not (tmp_path / PREALLOCATED).exists()
