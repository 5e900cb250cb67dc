"""Trained weights as model folders have them: types, files of limited size, and what is not trained."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rl_agent.served_model.weights import INDEX, read_tensors
from rl_agent.trainer.grpo.model.file_layout import FileLayout
from rl_agent.trainer.grpo.publish.served import ServedWeights, export, write_tensors


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    config = {"model_type": "tiny", "torch_dtype": "float16", "text_config": {"dtype": "float16"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / INDEX).write_text("{}")
    (folder / "kept").mkdir()
    save_file({"drafting.weight": torch.arange(3)}, folder / "kept" / "model.safetensors")
    return folder


def policy(files=None):
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2))
    return SimpleNamespace(model=model, files=files or FileLayout())


def test_every_weight_has_the_wanted_type_and_the_name_of_its_file():
    source = ServedWeights(policy(FileLayout(names={"0.weight": "embed.weight"})), torch.bfloat16)
    assert [(spec.name, spec.dtype, spec.shape) for spec in source.specs] == [
        ("embed.weight", "BF16", (3, 4)),
        ("1.weight", "BF16", (2, 3)),
        ("1.bias", "BF16", (2,)),
    ]
    assert [name for name, _ in source.tensors()] == ["embed.weight", "1.weight", "1.bias"]
    assert source.aliases == {}


def test_untrained_weights_keep_their_type_and_bytes(base):
    source = ServedWeights(policy(FileLayout(kept=read_tensors(base / "kept"))), torch.bfloat16)
    assert [(spec.name, spec.dtype) for spec in source.specs][-1] == ("drafting.weight", "I64")
    assert dict(source.tensors())["drafting.weight"].tolist() == [0, 1, 2]


def test_files_of_limited_size_hold_all_weights_and_an_index_names_them(tmp_path):
    trained = policy()
    folder = tmp_path / "out"
    folder.mkdir()
    write_tensors(ServedWeights(trained, torch.float32), folder, file_bytes=40)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) == 2 and (folder / INDEX).exists()
    assert read_tensors(folder).keys() == dict(trained.model.named_parameters()).keys()


def test_a_folder_appears_whole_with_its_type_in_every_configuration(base, tmp_path):
    trained, folder = policy(), tmp_path / "model"
    export(trained, SimpleNamespace(rank=0), base, folder, torch.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    assert config == {"model_type": "tiny", "dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}}
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    tensors = load_file(folder / "model.safetensors")
    assert all(torch.equal(tensors[n], p.bfloat16()) for n, p in trained.model.named_parameters())
    assert not folder.with_name("model.tmp").exists()


def test_other_ranks_take_part_and_write_nothing(base, tmp_path):
    export(policy(), SimpleNamespace(rank=1), base, tmp_path / "model", torch.float32)
    assert not (tmp_path / "model").exists()
