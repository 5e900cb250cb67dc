"""A checkpoint gives the tensors of its model, tied ones once."""

import json
from unittest.mock import Mock

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from rl_agent.errors import WeightsError
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.tensor_sources import Checkpoint
from tests.unit.weights.weight_versions import open_store, publish_steps, random_state, settings


def write_checkpoint(folder, state, *, tied: bool, shards: int = 1):
    folder.mkdir()
    files = {name: f"model-{index % shards}.safetensors" for index, name in enumerate(state)}
    for file in set(files.values()):
        save_file({name: state[name] for name in state if files[name] == file}, folder / file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    return folder


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_gives_the_same_version_as_the_model_in_memory(tmp_path, shards):
    folder = write_checkpoint(tmp_path / "model", random_state(), tied=False, shards=shards)
    with open_store(tmp_path / "store") as store:
        snapshot = Publisher(store, settings()).publish(1, Checkpoint.of(folder))
    with publish_steps(tmp_path / "memory", 1) as store:
        assert snapshot.manifest.digest == store.newest.manifest.digest


@pytest.mark.parametrize(("tied", "equal"), [(True, True), (True, False), (False, True)])
def test_a_checkpoints_output_layer_is_left_out_only_if_tied_and_equal(tmp_path, tied, equal):
    table = torch.randn(40, 8)
    state = {"model.embed_tokens.weight": table, "lm_head.weight": table.clone() if equal else table + 1}
    source = Checkpoint.of(write_checkpoint(tmp_path / "model", state, tied=tied))
    is_once = tied and equal
    assert source.aliases == ({"lm_head.weight": "model.embed_tokens.weight"} if is_once else {})
    assert len(source.specs) == (1 if is_once else 2)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="holds no safetensors file"):
        Checkpoint.of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(WeightsError, match="cannot be read"):
        Checkpoint.of(tmp_path)


def test_a_checkpoints_file_is_opened_once_for_all_its_tensors(tmp_path, monkeypatch):
    """Its header names thousands, where a model has many experts, and an engine pauses meanwhile."""
    safe_open = Mock(side_effect=safetensors.safe_open)
    monkeypatch.setattr(safetensors, "safe_open", safe_open)
    save_file({f"{n}.weight": torch.full((2,), float(n)) for n in range(9)}, tmp_path / "model.safetensors")
    source = Checkpoint.of(tmp_path)
    safe_open.reset_mock()
    assert [tensor[0].item() for _, tensor in source.tensors()] == list(range(9))
    assert safe_open.call_count == 1
