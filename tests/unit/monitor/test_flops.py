"""Counting what a model demands, and knowing what a device can do."""

import pytest

from rl_agent.monitor.flops import ModelShape, peak_flops_per_s, training_flops

QWEN3_8B = {
    "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_shape_has_the_weights_of_its_model():
    shape = ModelShape.of(QWEN3_8B)
    assert shape.weights == pytest.approx(8.19e9, rel=0.002)
    assert shape.kv_bytes == 147_456
    tied = ModelShape.of(QWEN3_8B | {"tie_word_embeddings": True})
    assert shape.weights - tied.weights == 151_936 * 4096


def test_a_long_sequence_costs_six_flops_a_weight_and_its_attention():
    shape, length = ModelShape.of(QWEN3_8B), 1000
    dense = 6 * length * (shape.layer_weights + 151_936 * 4096)
    attention = 6 * length**2 * 36 * 32 * 128
    assert training_flops(shape, [(length, length)]) == pytest.approx(dense + attention)


def test_prompts_skip_the_vocabulary_and_a_reference_is_one_pass_more():
    shape = ModelShape.of(QWEN3_8B)
    saved = training_flops(shape, [(1000, 1000)]) - training_flops(shape, [(1000, 400)])
    assert saved == pytest.approx(6 * 600 * 151_936 * 4096)
    assert training_flops(shape, [(10, 5)], passes=4) == pytest.approx(
        4 / 3 * training_flops(shape, [(10, 5)])
    )


def test_frozen_weights_want_no_gradient_of_their_own():
    shape, length = ModelShape.of(QWEN3_8B), 1000
    dense = 4 * length * (shape.layer_weights + 151_936 * 4096)
    attention = 6 * length**2 * 36 * 32 * 128
    assert training_flops(shape, [(length, length)], is_frozen=True) == pytest.approx(dense + attention)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": None},
        {"num_experts": 128},
        {"vocab_size": "many"},
        {"layer_types": ["linear_attention", "full_attention"]},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512},
        {"sliding_window": 4096},
        {"mamba_d_state": 128},
        {"kv_lora_rank": 512},
    ],
    ids=str,
)
def test_models_other_than_dense_decoders_are_not_counted(change):
    assert ModelShape.of(QWEN3_8B | change) is None
    assert ModelShape.of({}) is None


def test_a_window_that_is_not_used_and_an_mlp_without_gate_are_counted():
    assert ModelShape.of(QWEN3_8B | {"sliding_window": 4096, "use_sliding_window": False})
    gated, plain = ModelShape.of(QWEN3_8B), ModelShape.of(QWEN3_8B | {"model_type": "gpt_neox"})
    assert gated.layer_weights - plain.layer_weights == 36 * 4096 * 12_288


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989.5),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA A10G", 70.0),
        ("AMD Instinct MI300X", 1307.4),
    ],
)
def test_common_gpus_are_known_by_the_name_their_driver_gives(name, tflops):
    assert peak_flops_per_s(name) == tflops * 1e12


@pytest.mark.parametrize("name", ["cpu", "NVIDIA GeForce GTX 1080", "H2000", ""])
def test_no_rate_is_invented_for_what_is_not_known(name):
    assert peak_flops_per_s(name) is None


@pytest.mark.parametrize(
    ("vision", "weights"),
    [
        ({"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2048}, 406_957_056),
        ({"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096}, 576_388_336),
        ({"depth": 32, "embed_dim": 1280, "hidden_size": 4096, "mlp_ratio": 4}, 678_381_056),
    ],
)
def test_a_towers_matrices_are_nearly_all_of_its_weights(vision, weights):
    """Weights as transformers counts the parameters of Qwen3-VL-2B, Qwen3-VL-8B and Qwen2-VL-7B."""
    deeper = {} if "embed_dim" in vision else {"deepstack_visual_indexes": [5, 11, 17]}
    config = {"text_config": QWEN3_8B, "vision_config": vision | deeper | {"spatial_merge_size": 2}}
    tower = ModelShape.of(config).tower
    assert tower.weights == pytest.approx(weights, rel=0.02)
    thousand, double = tower.flops(1000), tower.flops(2000)
    assert double - 2 * thousand == pytest.approx(4 * 2 * 1000**2 * tower.layers * tower.hidden_size)
