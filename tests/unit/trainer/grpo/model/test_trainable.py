"""Models that the streaming trainer is not started with, by their configurations."""

import pytest

from rl_agent.trainer.grpo.model.trainable import obstacle

FITTING = {
    "a dense decoder": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "a mixture of experts": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]},
    "no architecture named": {"model_type": "llama"},
    "architectures of another kind": {"model_type": "llama", "architectures": 7},
    "its text part alone": {
        "model_type": "qwen3_5_moe",
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    },
    "code that is not needed": {"model_type": "qwen2", "auto_map": {"AutoConfig": "a.B"}},
    "without a head of its own": {"model_type": "mixtral", "architectures": ["MixtralModel"]},
    "an old head": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
}
FITTING |= {
    kind: {"model_type": kind, "vision_config": {}, "text_config": {}}
    for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
}
REFUSED = {
    "vision": (
        {"model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"]},
        "is a Idefics3ForConditionalGeneration, and trainer=grpo trains text models and qwen2_vl, ",
    ),
    "vision that transformers counts as text": (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        "is a Gemma3ForConditionalGeneration, and",
    ),
    "vision, unnamed": ({"model_type": "new_vl", "vision_config": {}}, "is a new_vl, and"),
    "an encoder": (
        {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        "generates no text (BertForMaskedLM)",
    ),
    "a reward model": (
        {"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]},
        "generates no text (Qwen2ForSequenceClassification)",
    ),
    "encoder and decoder": (
        {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "is_encoder_decoder": True},
        "has an encoder (bart)",
    ),
    "fp8": (
        {"model_type": "qwen3_moe", "quantization_config": {"quant_method": "fp8"}},
        "is quantized (fp8), and trainer=grpo trains bf16 or fp32; take it without quantization",
    ),
    "4 bits": (
        {"model_type": "llama", "quantization_config": {}},
        "is quantized (by a method it does not name)",
    ),
    "code of its own": (
        {"model_type": "brand_new", "auto_map": {"AutoModelForCausalLM": "modeling.New"}},
        "brings code of its own (brand_new), which trainer=grpo does not run",
    ),
    "unknown": (
        {"model_type": "brand_new", "architectures": ["BrandNewForCausalLM"]},
        "is of type brand_new (BrandNewForCausalLM), which the installed transformers has no causal",
    ),
    "two architectures": (
        {"model_type": "llama", "architectures": ["MistralForCausalLM"]},
        "is LlamaForCausalLM by its model_type (llama) and MistralForCausalLM by its architectures",
    ),
    "speech": (
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        "is a T5ForConditionalGeneration, and",
    ),
    "empty": ({}, "names no model_type"),
    "another kind of type": ({"model_type": ["qwen3"]}, "names no model_type"),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_decoder_of_text_or_of_qwens_images_is_taken(name):
    assert obstacle(FITTING[name]) is None


@pytest.mark.parametrize("name", REFUSED)
def test_another_is_refused_with_what_it_is_and_what_would_be_right(name):
    config, message = REFUSED[name]
    problem = obstacle(config)
    assert problem is not None and message in problem
    assert "; take " in problem and "\n" not in problem
