"""A loaded model is checked with the kernels and the precision that it computes with."""

import pytest

from rl_agent.trainer.model import model_files
from rl_agent.trainer.model.model_files import load_policy
from rl_agent.trainer.model.probe import ScoringMode
from tests.integration.trainer.model.test_probe import FAMILIES, save
from tests.integration.trainer.settings import trainer_settings


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
