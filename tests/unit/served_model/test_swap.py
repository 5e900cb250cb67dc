"""The newest model is loaded into the running engine, from snapshots of it and of the one before."""

import shutil

import pytest

from rl_agent.errors import StoreError, WeightsError
from rl_agent.served_model import swap as module
from rl_agent.served_model.swap import swap
from rl_agent.weights.load.base import LoadReport
from rl_agent.weights.store.store import FULL
from tests.unit.served_model.test_verify import flip_a_bit
from tests.unit.trainer.llamafactory.trainings import publish_iteration


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    """Models that the engine was given, each with the version that it may go back to."""
    given = []

    async def load(plan, snapshot, previous):
        given.append((snapshot.weight_version, previous.weight_version, snapshot.view(FULL).nbytes))
        return LoadReport(snapshot.weight_version, 0.25, 0.125)

    monkeypatch.setattr(module, "_load", load)
    monkeypatch.setattr(module, "store_folder", lambda plan: tmp_path / "store")
    return given


def test_the_newest_model_is_loaded_and_the_previous_one_is_kept(plan, loaded):
    publish_iteration(plan, 1)
    first = swap(plan, 0)
    publish_iteration(plan, 2)
    second = swap(plan, 1)
    assert [(version, before) for version, before, _ in loaded] == [(1, 0), (2, 1)]
    assert [report.weight_version for report in (first, second)] == [1, 2]
    assert {report.size_bytes for report in (first, second)} == {size for *_, size in loaded}
    assert (second.pause_s, second.load_s) == (0.25, 0.125)


def test_a_missing_previous_version_is_refused_before_the_engine_changes(plan, loaded):
    publish_iteration(plan, 1)
    publish_iteration(plan, 2)
    shutil.rmtree(plan.paths.version_dir(1))
    with pytest.raises(WeightsError, match="version 1 is not on this machine any more"):
        swap(plan, 1)
    assert not loaded


def test_a_model_that_changed_since_it_was_published_is_not_loaded(plan, loaded):
    publish_iteration(plan, 1)
    flip_a_bit(plan.paths.version_dir(1) / "model.safetensors")
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        swap(plan, 0)
    assert not loaded
