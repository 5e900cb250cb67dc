"""Families of models whose logits are easily computed wrongly, tiny, and what plain transformers computes."""

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rl_agent.trainer.grpo.model.buffers import forget_lengths
from tests.integration.trainer.samples import VOCABULARY

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}


FAMILIES: dict[str, dict[str, Any]] = {
    "mistral with a window": {"model_type": "mistral", "sliding_window": 8},
    "phi3 with a window": {"model_type": "phi3", "sliding_window": 8, "num_key_value_heads": 4},
    "qwen2 with windows in some layers": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "gemma2: windows, capped scores, capped logits, scaled embeddings": {
        "model_type": "gemma2",
        "sliding_window": 8,
        "attn_logit_softcapping": 1.0,
        "final_logit_softcapping": 2.0,
    },
    "gemma3: windows, two kinds of angles": {"model_type": "gemma3_text", "sliding_window": 8},
    "gpt_oss: windows, sinks, experts": {"model_type": "gpt_oss", "sliding_window": 8},
    "cohere: scaled logits": {"model_type": "cohere", "logit_scale": 0.5},
    "granite: scales everywhere": {
        "model_type": "granite",
        "logits_scaling": 4.0,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.1,
    },
    "phi: a bias of the output matrix": {"model_type": "phi", "num_key_value_heads": 4},
    "apertus: weights that are buffers": {"model_type": "apertus"},
    "nanochat: capped logits": {"model_type": "nanochat"},
    "gpt2: drops out in training, positions that are learnt": {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_head": 4,
    },
}


ONE_AFTER_THE_OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "lfm2: convolutions": (
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"]},
        "one after the other, .* together they are scored otherwise than each alone",
    ),
    "qwen3_5: recurrent layers": (
        {
            "model_type": "qwen3_5_text",
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
        "one after the other, .* together they are scored otherwise than each alone",
    ),
    "llama: angles by the length": (
        {
            "model_type": "llama",
            "max_position_embeddings": 32,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        },
        "where one has more than 32 tokens, .* depend on the longest sequence",
    ),
    "stablelm: passes nothing on to its attention": (
        {"model_type": "stablelm"},
        "takes no packed sequences",
    ),
}


def save(folder: Path, family: dict[str, Any]) -> torch.nn.Module:
    """A random model of the family, with weights that say something; what is written, in fp32."""
    torch.manual_seed(0)
    changes = {name: value for name, value in (SIZES | family).items() if name != "model_type"}
    config = CONFIG_MAPPING[family["model_type"]](**changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def plain_logprobs(folder: Path, all_rows) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    logprobs = []
    for row in all_rows:
        forget_lengths(model)
        tokens = torch.as_tensor(row.segment.token_ids).long()
        log_p = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
        chosen = torch.as_tensor(row.segment.is_response.nonzero()[0])
        logprobs.append(log_p[chosen - 1, tokens[chosen]])
    return torch.cat(logprobs)
