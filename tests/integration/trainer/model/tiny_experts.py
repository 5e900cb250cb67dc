"""Tiny random mixtures of experts of several architectures, as their files on the Hub are."""

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from tests.integration.trainer.samples import VOCABULARY

EXPERTS = 5
"""Odd: over two ranks they divide unevenly."""
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
_SMALL = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
_SMALL |= _HEADS | {"pad_token_id": 0}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
_LATENT |= {"v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4}
_ROUTED = {"n_routed_experts": EXPERTS, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
_FINE = {"num_experts": EXPERTS, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "head_dim": 16}
_COARSE = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": None}
_DENSE_FIRST = {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**_FINE, "decoder_sparse_step": 1},
    "mixtral": _COARSE,
    "deepseek_v3": {**_ROUTED, **_DENSE_FIRST, **_LATENT},
    "ernie4_5_moe": {"moe_num_experts": EXPERTS, "moe_k": 2, "moe_intermediate_size": 32},
    "qwen2_moe": {**_FINE, "shared_expert_intermediate_size": 32},
    "glm4_moe": {**_ROUTED, **_DENSE_FIRST, "head_dim": 16},
    "olmoe": {"num_experts": EXPERTS, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": EXPERTS, "num_experts_per_tok": 2},
    "minimax_m2": {**_COARSE, "head_dim": 16, "rotary_dim": 16},
    "hunyuan_v1_moe": {"num_experts": EXPERTS, "moe_topk": 2, "head_dim": 16},
    "hy_v3": {**_FINE, "first_k_dense_replace": 1},
    "solar_open": {**_ROUTED, "n_group": 1, "topk_group": 1, "head_dim": 16},
    "deepseek_v2": {**_ROUTED, **_DENSE_FIRST, **_LATENT},
    "granitemoe": _COARSE,
}
"""The first are tested on every change, the others with what is extended."""


def make_experts(folder: Path, family: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Save one as transformers does; returns it. Its experts and routers tell tokens apart."""
    logging.disable_progress_bar()
    config = CONFIG_MAPPING[family](**(_SMALL | FAMILIES[family] | changes))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    for tensor in (*model.parameters(), *buffers.values()):
        tensor.data.add_(0.05 * torch.randn_like(tensor))
    model.save_pretrained(folder)
    return model
