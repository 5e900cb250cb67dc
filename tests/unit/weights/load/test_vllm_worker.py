"""A worker loads the announced version of its model, or keeps what it has and says why."""

import os

import pytest
import torch

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import verify
from rl_agent.weights.load.vllm_names import AS_STARTED
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import FULL
from tests.integration.weights.fingerprints import fingerprint
from tests.support.weight_transfers import StateDict
from tests.unit.weights.load.test_same_model import FakeWorker
from tests.unit.weights.weight_sources import raising
from tests.unit.weights.weight_versions import settings, state_of


@pytest.fixture
def worker(tmp_path):
    return FakeWorker(tmp_path)


def test_an_error_of_the_models_loader_is_an_answer_and_voids_the_version(worker, store, tmp_path):

    worker.reload_weights = raising(RuntimeError("no such parameter"))
    assert worker.load(store, 2) == {"error": "RuntimeError: no such parameter", "held": None}
    assert worker.rl_agent_held() == {"weight_version": None}


def test_a_data_parallel_worker_raises_instead_of_answering(store, tmp_path):
    worker = FakeWorker(tmp_path, data_parallel_size=2)
    with pytest.raises(WeightsError, match="is not a weight version"):
        worker.load(store, 9, "0" * 64)


def test_a_worker_loads_every_tensor_of_the_announced_version(store, tmp_path):
    worker = FakeWorker(tmp_path / "not a folder")
    with store.hold(2) as snapshot:
        worker.load(store, 2)
        assert worker.loaded.keys() == state_of(snapshot).keys()
        assert worker.rl_agent_fingerprint() == fingerprint(state_of(snapshot).items())


def test_a_worker_refuses_unannounced_or_foreign_versions(worker, store, tmp_path):
    worker.load(store, 2)
    before = worker.rl_agent_fingerprint()
    Publisher(store, settings()).publish(3, StateDict.of({"norm.weight": torch.ones(7)}))
    assert "is of another model" in worker.load(store, 3)["error"]
    assert "not the announced version" in worker.load(store, 2, "0" * 64)["error"]
    assert "is not a weight version" in worker.load(store, 9, "0" * 64)["error"]
    assert worker.rl_agent_fingerprint() == before


def written_to(snapshot):
    """The same bytes again: what was verified is what was there before."""
    path = snapshot.path(FULL)
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


def test_a_worker_refuses_a_version_changed_since_it_was_verified(worker, store, tmp_path):
    with store.hold(2) as two:
        stamp = list(verify(two))
        assert "error" not in worker.load(store, 2, two.manifest.digest, stamp)
        written_to(two)
        answer = worker.load(store, 2, two.manifest.digest, stamp)
    assert "was written to after it was verified" in answer["error"]
    assert answer["held"] == 2


@pytest.mark.parametrize("has_stamp", [True, False])
def test_a_version_written_to_while_a_worker_loads_it_is_not_served(worker, store, tmp_path, has_stamp):
    load = worker.reload_weights
    with store.hold(2) as two:
        stamp = [list(verify(two))] if has_stamp else []

        def slow(weights_iterator):
            load(weights_iterator)
            written_to(two)

        worker.reload_weights = slow
        answer = worker.load(store, 2, None, *stamp)
    assert "was written to after it was verified" in answer["error"]
    assert answer["held"] is None


def test_a_quantized_engines_worker_refuses_all_and_others_quantized_ones(store):
    worker = FakeWorker("no folder")
    worker.model_config.quantization = "compressed-tensors"
    answer = worker.load(store, 2)
    assert "the engine serves quantized weights (compressed-tensors)" in answer["error"]
    assert (answer["held"], worker.loaded) == (AS_STARTED, {})
    worker.model_config.quantization = None
    assert "error" not in worker.load(store, 2)
    with store.hold(2) as two:
        state = state_of(two) | {"norm.weight_scale": torch.ones(7)}
        Publisher(store, settings()).publish(3, StateDict.of(state))
    answer = worker.load(store, 3)
    assert "is of a quantized model, and the engine serves one that is not" in answer["error"]
    assert answer["held"] == 2
