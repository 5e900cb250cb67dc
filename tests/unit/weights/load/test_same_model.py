"""A version is loaded only into an engine of its own model."""

from types import SimpleNamespace

import pytest
import torch

from rl_agent.errors import WeightsError
from rl_agent.weights.load.same_model import check_same_model, shapes_of
from rl_agent.weights.publish.publish import Publisher
from tests.integration.weights.fingerprints import FingerprintedWorker
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import open_store, random_state, settings


class FakeWorker(FingerprintedWorker):
    device = torch.device("cpu")

    def __init__(self, model, data_parallel_size=1):
        self.parallel_config = SimpleNamespace(data_parallel_size=data_parallel_size)
        self.model_config = SimpleNamespace(model=str(model), quantization=None)
        self.model_runner = self
        self.loaded = {}

    def load(self, store, weight_version, digest=None, *stamp):
        """The worker's answer to a call for a version of a store, by its own digest where none is given."""
        if digest is None:
            with store.hold(weight_version) as snapshot:
                digest = snapshot.manifest.digest
        return self.rl_agent_load_weights(str(store.root), weight_version, digest, *stamp)

    def reload_weights(self, weights_iterator):
        self.loaded = dict(weights_iterator)

    def get_model(self):
        return self

    def named_parameters(self):
        return self.loaded.items()

    def named_modules(self):
        return []


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_head_missing_in_the_checkpoint_is_taken_only_if_tied(tmp_path, is_tied):
    from safetensors.torch import save_file

    embedding = torch.randn(20, 4)
    (tmp_path / "model").mkdir()
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model" / "model.safetensors")
    worker = FakeWorker(tmp_path / "model")
    head = embedding if is_tied else embedding.clone() + 1
    state = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    with open_store(tmp_path / "store") as store:
        Publisher(store, settings()).publish(1, StateDict.of(state))
        answer = worker.load(store, 1)
    if is_tied:
        assert torch.equal(worker.loaded["lm_head.weight"], embedding)
    else:
        assert "lm_head.weight is new" in answer["error"]


@pytest.mark.parametrize(
    ("dtype", "words"),
    [(torch.int64, "is of type I64"), (torch.float8_e4m3fn, "is of type F8_E4M3"), (torch.float16, None)],
)
def test_an_engine_takes_no_version_of_another_kind_of_values(tmp_path, dtype, words):
    state = random_state()
    with open_store(tmp_path / "own") as own, open_store(tmp_path / "other") as other:
        known = shapes_of(Publisher(own, settings()).publish(1, StateDict.of(state)))
        changed = state | {"norm.weight": state["norm.weight"].to(dtype)}
        version = Publisher(other, settings()).publish(1, StateDict.of(changed))
        if words is None:
            check_same_model(version, known)
        else:
            with pytest.raises(WeightsError, match=rf"norm\.weight {words}, the engine's float"):
                check_same_model(version, known)
