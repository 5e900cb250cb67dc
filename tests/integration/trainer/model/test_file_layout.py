"""Folders whose configuration says one thing and whose files say another, and odd configurations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks
from tests.integration.trainer.model.test_miniature import config_of
from tests.integration.trainer.settings import trainer_settings

Tensors = dict[str, torch.Tensor]


def quantize(tensors: Tensors) -> None:
    """Describe the quantization as a tool does, in a file of its own, not in config.json."""
    for name in [name for name in tensors if "down_proj" in name]:
        scale = tensors[name].abs().max() / 400
        tensors[name.replace("weight", "weight_scale")] = scale.reshape(1)
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)


def give_an_own_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1


def repeat_the_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def add_a_layer(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".layers.1." in name]:
        tensors[name.replace(".1.", ".2.")] = tensors[name].clone()


def grow_the_vocabulary(tensors: Tensors) -> None:
    tensors["model.embed_tokens.weight"] = torch.zeros(72, 32)


def load(folder: Path, ranks: Ranks, change: Callable[[Tensors], None], **changes: Any) -> None:
    model = AutoModelForCausalLM.from_config(config_of("llama", **changes), dtype=torch.float32)
    model.save_pretrained(folder / "model")
    file = folder / "model/model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    assert "quantization_config" not in json.loads((folder / "model/config.json").read_bytes())
    load_policy(trainer_settings(folder / "model", folder), ranks)


@pytest.mark.parametrize(
    ("change", "changes", "message"),
    [
        (quantize, {}, "down_proj.weight is F8_E4M3, so its weights are quantized"),
        (give_an_own_head, {"tie_word_embeddings": True}, "ties lm_head.weight to model.embed_tokens.weight"),
        (grow_the_vocabulary, {}, r"embed_tokens.weight has shape \[72, 32\].* has \[64, 32\] there"),
    ],
    ids=["weights without their scales", "a head beside a tied one", "another vocabulary"],
)
def test_files_that_contradict_the_configuration_are_refused(alone, tmp_path, change, changes, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, alone, change, **changes)


def test_files_that_say_the_same_twice_are_taken(alone, tmp_path, caplog):
    load(tmp_path, alone, repeat_the_head, tie_word_embeddings=True)
    assert "rl_agent" not in caplog.text  # a vocabulary of 64 is no obstacle either


def test_layers_that_the_configuration_does_not_count_are_named(alone, tmp_path, caplog):
    load(tmp_path, alone, add_a_layer)
    assert "9 tensors of its files have no place in a model of type llama" in caplog.text
    assert "model.layers.2.input_layernorm.weight" in caplog.text
