"""Models that the streaming trainer is not started with, by their configurations."""

import pytest

from rl_agent.trainer.grpo.model.trainable import obstacle


def config(model_type: str, architecture: str = "", **more) -> dict:
    return {"model_type": model_type} | ({"architectures": [architecture]} if architecture else {}) | more


FITTING = {
    "a dense decoder": config("qwen3", "Qwen3ForCausalLM"),
    "a mixture of experts": config("qwen3_moe", "Qwen3MoeForCausalLM"),
    "no architecture named": config("llama"),
    "architectures of another kind": config("llama", architectures=7),
    "its text part alone": config("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
    "code that is not needed": config("qwen2", auto_map={"AutoConfig": "a.B"}),
    "without a head of its own": config("mixtral", "MixtralModel"),
    "an old head": config("gpt2", "GPT2LMHeadModel"),
}
FITTING |= {
    kind: {"model_type": kind, "vision_config": {}, "text_config": {}}
    for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
}
REFUSED = {
    "vision": (
        config("idefics3", "Idefics3ForConditionalGeneration"),
        "is a Idefics3ForConditionalGeneration, and trainer=grpo trains text models and qwen2_vl, ",
    ),
    "vision that transformers counts as text": (
        config("gemma3", "Gemma3ForConditionalGeneration"),
        "is a Gemma3ForConditionalGeneration, and",
    ),
    "vision, unnamed": (config("new_vl", vision_config={}), "is a new_vl, and"),
    "an encoder": (config("bert", "BertForMaskedLM"), "generates no text (BertForMaskedLM)"),
    "a reward model": (
        config("qwen2", "Qwen2ForSequenceClassification"),
        "generates no text (Qwen2ForSequenceClassification)",
    ),
    "encoder and decoder": (
        config("bart", "BartForConditionalGeneration", is_encoder_decoder=True),
        "has an encoder (bart)",
    ),
    "fp8": (
        config("qwen3_moe", quantization_config={"quant_method": "fp8"}),
        "is quantized (fp8), and trainer=grpo trains bf16 or fp32; take it without quantization",
    ),
    "4 bits": (config("llama", quantization_config={}), "is quantized (by a method it does not name)"),
    "code of its own": (
        config("brand_new", auto_map={"AutoModelForCausalLM": "modeling.New"}),
        "brings code of its own (brand_new), which trainer=grpo does not run",
    ),
    "unknown": (
        config("brand_new", "BrandNewForCausalLM"),
        "is of type brand_new (BrandNewForCausalLM), which the installed transformers has no causal",
    ),
    "two architectures": (
        config("llama", "MistralForCausalLM"),
        "is LlamaForCausalLM by its model_type (llama) and MistralForCausalLM by its architectures",
    ),
    "speech": (config("t5", "T5ForConditionalGeneration"), "is a T5ForConditionalGeneration, and"),
    "empty": ({}, "names no model_type"),
    "another kind of type": (config(["qwen3"]), "names no model_type"),
}


@pytest.mark.parametrize("model", FITTING.values(), ids=FITTING)
def test_a_decoder_of_text_or_of_qwens_images_is_taken(model):
    assert obstacle(model) is None


@pytest.mark.parametrize(("model", "message"), REFUSED.values(), ids=REFUSED)
def test_another_is_refused_with_what_it_is_and_what_would_be_right(model, message):
    problem = obstacle(model)
    assert problem is not None and message in problem
    assert "; take " in problem and "\n" not in problem
