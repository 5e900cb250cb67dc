"""An adapter says what it is by its tensors' names and shapes, and for which files of a base model it is."""

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import LayerShape, adapter_layers, base_digest, is_adapter
from rl_agent.weights.format.manifest import TensorSpec, lay_out
from rl_agent.weights.store.tensor_sources import files_in
from tests.unit.weights.adapters import LAYER, make_base, publish_adapter
from tests.unit.weights.weight_versions import open_store, publish_steps


def entries(**shapes):
    return lay_out(TensorSpec(name, "F32", shape) for name, shape in shapes.items()).tensors


def test_an_adapter_names_its_layers_with_rank_and_sizes(tmp_path):
    with open_store(tmp_path / "store") as store:
        manifest = publish_adapter(store, make_base(tmp_path / "base")).manifest
        assert is_adapter(manifest)
        assert adapter_layers(manifest.tensors) == {LAYER: LayerShape(rank=2, inputs=4, outputs=6)}


def test_a_version_of_all_weights_is_no_adapter(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        assert not is_adapter(store.newest.manifest)


@pytest.mark.parametrize(
    "shapes",
    [
        {},
        {"q.lora_A.weight": (2, 4)},
        {"q.lora_A.weight": (2, 4), "q.lora_B.weight": (6, 3)},
        {"q.lora_A.weight": (2, 4), "q.lora_B.weight": (6,)},
        {"q.lora_A.weight": (2, 4), "q.lora_B.weight": (6, 2), "q.weight": (6, 4)},
    ],
)
def test_matrices_that_do_not_fit_together_are_refused(shapes):
    with pytest.raises(WeightsError, match=r"no layers|is no matrix of an adapter"):
        adapter_layers(entries(**shapes))


def test_a_base_is_known_by_its_bytes_whatever_the_folder(tmp_path):
    folders = [make_base(tmp_path / name, seed=seed) for name, seed in [("a", 0), ("b", 0), ("c", 1)]]
    first, same, other = (base_digest(files_in(folder), threads=2) for folder in folders)
    assert first == same != other
