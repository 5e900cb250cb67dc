"""A training that cannot fit its GPUs is refused before anything starts."""

from types import SimpleNamespace

import pytest

from rl_agent.config.plan import Command
from rl_agent.errors import ConfigError
from rl_agent.plan.gpu_memory import check_gpu_memory
from tests.unit.config.overrides.test_compose import compose
from tests.unit.plan.test_model import BOTH

QWEN3_8B = {
    "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": False,
}  # fmt: skip
H100_GIB = 79.6
AWAY = ("trainer=grpo", "pool.local_engine=false")


def checked(*words, gpus=1, model=QWEN3_8B, device_gib=H100_GIB, size_gib=0, **command):
    config = compose(*words, num_gpus=gpus).config
    parsed = Command.model_validate(BOTH | command)
    found = SimpleNamespace(config=model, size_bytes=size_gib * 2**30)
    return check_gpu_memory(config, parsed, found, num_gpus=gpus, device_gib=device_gib)


def test_what_is_chosen_for_a_streaming_trainer_is_said():
    (note,) = checked(*AWAY, "trainer.mini_batches=1")
    assert note == (
        "trainer.parallel.activation_checkpointing=1 offload_optimizer=true: a step takes about 70 of 80 GiB"
        " on each of 1 GPUs"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (AWAY, r"needs about 101 GiB on each of 1 GPUs, and 76 GiB can be used; .*trainer\.mini_batches=1"),
        (
            ("trainer=grpo", "trainer.placement=shared"),
            r"0 GiB can be used; take engine\.gpu_memory_utilization below 0\.95, more GPUs",
        ),
        (
            ("trainer.gradient_checkpointing=false",),
            r"a sample of trainer\.cutoff_len=32768 needs .*; set trainer\.gradient_checkpointing=true",
        ),
        ((), r"a sample of trainer\.cutoff_len=32768 needs .*; set trainer\.deepspeed=zero3 with more GPUs"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_what_would(words, told):
    with pytest.raises(ConfigError, match=told) as refusal:
        checked(*words)
    assert "\n" not in str(refusal.value)


def test_eight_gpus_train_8b_with_llamafactory_by_checkpointing():
    vision = {"text_config": QWEN3_8B}
    assert checked(gpus=8, model=vision) == (
        "trainer.gradient_checkpointing=true, for a sample of 32768 tokens to fit",
    )
    with pytest.raises(ConfigError, match=r"set trainer\.gradient_checkpointing=true"):
        checked("trainer.gradient_checkpointing=false", gpus=8, model=vision)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (AWAY, {"device_gib": 0.0}),
        (AWAY, {"model": None}),
        (AWAY, {"model": {"model_type": "mamba"}}),
        (AWAY, {"rl_phase": "rollout"}),
        ((), {"gpus": 0}),
        (("trainer.deepspeed=/home/user/offload.json",), {}),
        (("trainer.finetuning_type=lora", "trainer.gradient_checkpointing=true"), {}),
    ],
)
def test_nothing_is_said_where_nothing_is_known_or_all_fits(words, changes):
    assert checked(*words, **changes) == ()


@pytest.mark.parametrize(("longest", "share"), [(16_384, "0.75"), (65_536, "1"), (131_072, None)])
def test_a_long_response_is_computed_twice_or_refused_by_its_length(longest, share):
    words = (*AWAY, f"policy_config.max_new_tokens={longest}", "engine.max_model_len=131072")
    if share is not None:
        assert f"activation_checkpointing={share} offload" in checked(*words, gpus=2)[0]
        return
    with pytest.raises(ConfigError, match=r"a smaller policy_config\.max_new_tokens"):
        checked(*words, gpus=2)


EXPERTS = {"model_type": "qwen3_moe", "num_experts": 128, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("words", "gpus", "size_gib", "told"),
    [
        (AWAY, 2, 57, "alone need 114 GiB on each GPU where 2 share them, and 76 GiB can be used"),
        (AWAY, 4, 57, None),
        ((*AWAY, "trainer.parallel.shard_size=1"), 4, 57, "alone need 228 GiB"),
        ((*AWAY, "trainer.lora.rank=16"), 1, 57, None),
        ((*AWAY, "trainer.lora.rank=16"), 1, 90, "alone need 90 GiB"),
        (AWAY, 2, 0, None),
        (("trainer=grpo_cpu", "engine=cpu"), 1, 57, None),
        ((), 1, 57, None),
    ],
)
def test_experts_whose_weights_alone_do_not_fit_are_refused(words, gpus, size_gib, told):
    def check():
        return checked(*words, gpus=gpus, model=EXPERTS, size_gib=size_gib)

    if told is None:
        assert check() == ()
        return
    with pytest.raises(ConfigError, match=told):
        check()
