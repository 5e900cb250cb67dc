"""A model split at its output matrix computes the logits that it computes in one piece."""

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.model.head import OutputHead, layers_of

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
IDS = torch.arange(7)[None]
CAPPED = {"final_logit_softcapping": 0.5}


def tiny(kind: str, **changes):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**SIZES | changes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("kind", "changes", "is_plain"), [("qwen3", {}, True), ("gemma2", CAPPED, False)], ids=["plain", "capped"]
)
def test_products_with_the_head_and_its_scaling_are_the_models_logits(kind, changes, is_plain):
    model = tiny(kind, **changes)
    head = OutputHead(model)
    with torch.no_grad():
        products = head.inputs(input_ids=IDS, use_cache=False)[0] @ head.weight.T
        expected = model(input_ids=IDS, use_cache=False).logits[0]
        logits = products if head.transform is None else head.transform(products)
    assert (head.transform is None) == is_plain
    torch.testing.assert_close(logits, expected)


def test_the_model_is_afterwards_as_it_was():
    model = tiny("gemma2", **CAPPED)
    with torch.no_grad():
        before = model(input_ids=IDS, use_cache=False).logits
        head = OutputHead(model)
        head.inputs(input_ids=IDS, use_cache=False)
        assert head.transform is not None
        assert torch.equal(model(input_ids=IDS, use_cache=False).logits, before)


def test_a_model_whose_output_is_no_linear_layer_is_refused_by_its_type():
    model = tiny("qwen3")
    model.set_output_embeddings(nn.Bilinear(16, 16, 32))
    with pytest.raises(ConfigError, match="models of type qwen3: their output layer is a Bilinear"):
        OutputHead(model)


def test_its_layers_are_the_decoders():
    assert len(layers_of(tiny("qwen3"))) == SIZES["num_hidden_layers"]
