"""A loaded model is checked with the kernels and the precision that it computes with."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from rl_agent.trainer.model import model_files
from rl_agent.trainer.model.model_files import load_policy
from rl_agent.trainer.model.parallel import Ranks
from rl_agent.trainer.model.probe import ScoringMode
from tests.integration.trainer.ranks import single_rank
from tests.integration.trainer.samples import VOCABULARY
from tests.integration.trainer.settings import trainer_settings

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


@pytest.fixture(scope="module")
def alone() -> Iterator[Ranks]:
    with single_rank() as ranks:
        yield ranks


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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_kernel_that_mixes_sequences_is_found_with_the_model_itself(
    alone, tmp_path, precision, caplog, monkeypatch
):
    save(tmp_path / "model", {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"]})
    monkeypatch.setattr(
        model_files, "agreed_scoring_mode", lambda *_: ScoringMode()
    )  # as if the copy had packed well
    settings = trainer_settings(tmp_path / "model", tmp_path, steps=1, parallel={"precision": precision})
    policy = load_policy(settings, alone)
    assert not policy.is_packed
    assert "on this device its log-probabilities at once are off" in caplog.text


@pytest.mark.parametrize("name", ["gemma2: windows, capped scores, capped logits, scaled embeddings"])
def test_half_precision_raises_no_false_alarm(alone, tmp_path, name, caplog):
    save(tmp_path / "model", FAMILIES[name])
    settings = trainer_settings(tmp_path / "model", tmp_path, steps=1, parallel={"precision": "bf16"})
    assert load_policy(settings, alone).is_packed
    assert not [record for record in caplog.records if record.name.startswith("rl_agent")]
