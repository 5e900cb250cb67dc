"""A version becomes a folder that any loader of safetensors files reads."""

import torch
from safetensors.torch import load_file

from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.model_folder import model_folder
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import open_store, settings


def test_tied_tensors_are_there_under_the_names_that_are_asked_for(tmp_path):
    table = torch.randn(20, 4)
    with open_store(tmp_path / "store") as store:
        state = StateDict.of({"embed_tokens.weight": table, "lm_head.weight": table})
        snapshot = Publisher(store, settings()).publish(1, state)
        for names in ({"embed_tokens.weight"}, {"embed_tokens.weight", "lm_head.weight"}):
            with model_folder(snapshot, names) as folder:
                tensors = load_file(folder / "model.safetensors")
            assert tensors.keys() == names
            assert all(torch.equal(tensor, table) for tensor in tensors.values())
