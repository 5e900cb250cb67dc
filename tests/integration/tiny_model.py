"""A tiny random Qwen3 with a real tokenizer: what training, publishing and serving need, in a megabyte."""

import sys
from functools import cache
from pathlib import Path

from rl_agent.config.overrides.compose import RUN, compose
from rl_agent.config.overrides.words import parse_override
from rl_agent.config.plan import Config, Plan
from rl_agent.paths import PROJECT_ROOT
from tests.support.pool_setup import later_wins
from tests.support.rollout_setup import plan_of

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from tiny_tokenizer import prompt_text as prompt_text
from tiny_tokenizer import save_tokenizer, train_tokenizer


def make_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden_size: int = 64,
    experts: int = 0,
    tied: bool = False,
) -> Path:
    """Write a model folder that transformers, vLLM and LLaMA-Factory load; its weights are random.

    With `experts` it is a mixture of as many in every layer.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

    folder.mkdir(parents=True)
    tokenizer = train_tokenizer(f"What is {a} + {b}? Answer: {a + b}" for a in range(30) for b in range(30))
    save_tokenizer(tokenizer, folder, max_length=256)
    torch.manual_seed(seed)
    mixture = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": hidden_size}
    config = (Qwen3MoeConfig if experts else Qwen3Config)(
        **(mixture if experts else {}),
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def make_plan(log_path: Path, base_model: Path, *overrides: str) -> Plan:
    """A plan for CPU training of `base_model`; its log path exists."""
    log_path.mkdir(parents=True, exist_ok=True)
    config = _compose(overrides)
    model = config.model.model_copy(update={"base_model": str(base_model)})
    config = config.model_copy(update={"log_path": log_path, "data_path": log_path, "model": model})
    return plan_of(config, eval_interval=1, overrides=overrides)


@cache
def _compose(overrides: tuple[str, ...]) -> Config:
    words = ["trainer=llamafactory_cpu", "engine=cpu", "log_path=/unset", "data_path=/unset", "run_name=test"]
    words += overrides
    return compose(RUN, [parse_override(word, "a test") for word in later_wins(words)]).config
