"""A small copy has every kind of layer and angle that the model has."""

from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from rl_agent.trainer.grpo.model.rope import short_context
from tests.integration.trainer.model.miniature import CONTEXT, miniature

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


PLAIN = {"rope_type": "default", "rope_theta": 1e4}


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "head_dim": 16,
}


def config_of(kind: str, **changes: Any) -> PretrainedConfig:
    sizes = SIZES | {"num_key_value_heads": 2, "num_hidden_layers": 2, "pad_token_id": 0}
    return CONFIG_MAPPING[kind](**sizes | changes)


def test_a_kind_of_layer_that_comes_late_is_kept():
    kinds = ["full_attention"] * 14 + ["conv"] * 2

    config = config_of("lfm2", layer_types=kinds, num_hidden_layers=16)

    assert miniature(config).layer_types == ["full_attention"] * 11 + ["conv"]


def test_angles_of_one_kind_of_layer_may_depend_on_the_longest_sequence():
    angles = {"full_attention": DYNAMIC, "sliding_attention": PLAIN}
    config = config_of(
        "gemma3_text",
        rope_parameters=angles,
        layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=4096,
    )

    assert short_context(config.to_dict()) == 4096
    assert miniature(config).max_position_embeddings == CONTEXT
