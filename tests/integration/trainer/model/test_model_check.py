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
from tests.integration.trainer.model.test_probe import FAMILIES, SIZES
from tests.integration.trainer.ranks import single_rank
from tests.integration.trainer.settings import trainer_settings


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
