"""A folder that holds no whole model is refused in one line."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks
from rl_agent.trainer.grpo.model.policy import PolicyModel
from tests.integration.trainer.model.tiny_experts import make_experts
from tests.integration.trainer.settings import trainer_settings


def load(folder: Path, ranks: Ranks, **changes) -> PolicyModel:
    return load_policy(trainer_settings(folder, folder / "output", **changes), ranks)


NAME = "model.layers.1.mlp.experts.3.up_proj.weight"


def without_an_expert(tensors):
    del tensors[NAME]


def without_a_weight(tensors):
    del tensors["model.norm.weight"]


def of_another_shape(tensors):
    tensors[NAME] = torch.zeros(7, 64)


def with_names_of_its_own(tensors):
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name.replace(".experts.", ".specialists.")] = tensors.pop(name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_an_expert, rf"lacks {re.escape(NAME)} of a model of type qwen3_moe; a download may"),
        (without_a_weight, r"lacks model.norm.weight of .* \(1 weights are not there\); a download may have"),
        (of_another_shape, rf"{re.escape(NAME)} has shape \[7, 64\], .* has \[32, 64\] there"),
        (with_names_of_its_own, r"transformers 5\S* does not know what its \S*specialists\S* is"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_with_one_line(alone, tmp_path, damage, message):
    make_experts(tmp_path, "qwen3_moe")
    tensors = load_file(tmp_path / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=message) as refused:
        load(tmp_path, alone)
    assert "\n" not in str(refused.value)


def test_a_file_that_the_index_names_and_that_is_not_there_is_named(alone, tmp_path):
    plain = make_experts(tmp_path, "qwen3_moe")
    plain.save_pretrained(tmp_path, max_shard_size="60KB")
    (tmp_path / "model.safetensors").unlink()
    lost = sorted(tmp_path.glob("*.safetensors"))[2]
    lost.unlink()
    with pytest.raises(ConfigError, match=rf"{lost.name}.*; a download may have been broken off"):
        load(tmp_path, alone)
