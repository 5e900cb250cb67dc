"""Buffers in the files of a model, and those that follow from its configuration."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.model.buffers import (
    computed_buffers,
    forget_lengths,
    persistent_buffers,
    set_buffers,
)

CPU = torch.device("cpu")
ANGLES = "model.rotary_emb.inv_freq"


def tiny():
    config = Qwen3Config(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, head_dim=8)  # fmt: skip
    return Qwen3ForCausalLM(config)


def on_meta():
    with torch.device("meta"):
        return tiny()


def test_buffers_that_no_file_holds_are_computed_as_transformers_does():
    model = tiny()
    assert not persistent_buffers(model)
    buffers = computed_buffers(on_meta(), CPU)
    assert ANGLES in buffers
    assert all(torch.equal(values, model.get_buffer(name)) for name, values in buffers.items())


def test_a_buffer_of_the_files_is_one_that_is_saved():
    model = tiny()
    model.model.register_buffer("scale", torch.ones(3))
    assert [*persistent_buffers(model)] == ["model.scale"]
    assert "model.scale" in model.state_dict()


def test_a_buffer_that_nothing_computes_again_is_refused_by_name():
    model = on_meta()
    model.model.register_buffer("mystery", torch.ones(3, device="meta"), persistent=False)
    with pytest.raises(ConfigError, match=r"models of type qwen3: their buffer model\.mystery is in no file"):
        computed_buffers(model, CPU)


def test_computed_buffers_are_set_in_place():
    model = tiny()
    buffer = model.get_buffer(ANGLES)
    buffers = {ANGLES: buffer + 1}
    set_buffers(model, buffers)
    assert model.get_buffer(ANGLES) is buffer and torch.equal(buffer, buffers[ANGLES])


def test_angles_changed_by_a_long_sequence_equal_a_fresh_models_again():
    model = tiny()
    rotary = model.model.rotary_emb
    fresh = rotary.original_inv_freq
    rotary.inv_freq = fresh * 2
    forget_lengths(model)
    assert torch.equal(rotary.inv_freq, fresh)
