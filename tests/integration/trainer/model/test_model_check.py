"""A loaded model is checked with the kernels and the precision that it computes with."""

import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.model import attention, model_files, parallel
from rl_agent.trainer.grpo.model.model_check import compile_ahead
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import compiles_layers
from tests.integration.trainer.model.families import FAMILIES, ONE_AFTER_THE_OTHER, plain_logprobs, save
from tests.integration.trainer.model.test_policy import rows
from tests.integration.trainer.samples import after, beginning
from tests.integration.trainer.settings import trainer_settings


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_that_mixes_sequences_scores_one_after_the_other(alone, tmp_path, precision, caplog):
    save(tmp_path / "model", {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"]})
    settings = trainer_settings(tmp_path / "model", tmp_path, parallel={"precision": precision})
    policy = load_policy(settings, alone)
    assert not policy.is_packed
    assert not policy.shares_prefixes
    assert "the prompt of siblings is computed for each of them" in caplog.text
    assert "together they are scored otherwise than each alone" in caplog.text


@pytest.mark.parametrize("name", ["gemma2: windows, capped scores, capped logits, scaled embeddings"])
def test_half_precision_raises_no_false_alarm(alone, tmp_path, name, caplog):
    save(tmp_path / "model", FAMILIES[name])
    settings = trainer_settings(tmp_path / "model", tmp_path, parallel={"precision": "bf16"})
    assert load_policy(settings, alone).is_packed
    assert not [record for record in caplog.records if record.name.startswith("rl_agent")]


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_logprobs_are_those_of_plain_transformers(alone, tmp_path, name):
    save(tmp_path / "model", FAMILIES[name])
    policy = load_policy(trainer_settings(tmp_path / "model", tmp_path), alone)
    assert policy.is_packed
    assert policy.shares_prefixes
    segments = [row.segment for row in rows(5)]
    segments += [after(beginning(s, len(s) - 9), s) for s in segments]
    all_rows = [Row(segment, 1.0, 1, 0) for segment in segments]
    with torch.no_grad():
        packed, _ = policy(pack(all_rows, alone.device, shares=True))
        expected = plain_logprobs(tmp_path / "model", all_rows)
    assert expected.std() > 0.1
    torch.testing.assert_close(packed, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ONE_AFTER_THE_OTHER)
def test_models_that_cannot_pack_are_scored_by_sequence_with_a_note(alone, tmp_path, name, caplog):
    family, note = ONE_AFTER_THE_OTHER[name]
    save(tmp_path / "model", family)
    policy = load_policy(trainer_settings(tmp_path / "model", tmp_path), alone)
    assert re.search(note, caplog.text)
    with torch.no_grad():
        logprobs, _ = policy(pack(rows(5), alone.device))
        expected = plain_logprobs(tmp_path / "model", rows(5))
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-4)
    few = [row for row in rows(9) if len(row.segment) <= 32]
    with torch.no_grad():  # after long ones, too
        logprobs, _ = policy(pack(few, alone.device))
        torch.testing.assert_close(logprobs, plain_logprobs(tmp_path / "model", few), rtol=0, atol=1e-4)


def test_a_model_that_fails_with_shared_prefixes_gets_a_copy_each(alone, tmp_path, monkeypatch, caplog):
    def copies_of_the_first_token(tensor, places, dim):
        return tensor[:, :, :1].expand(-1, -1, len(places), -1)

    monkeypatch.setattr(attention, "_copied", copies_of_the_first_token)
    save(tmp_path / "model", next(iter(FAMILIES.values())))
    policy = load_policy(trainer_settings(tmp_path / "model", tmp_path), alone)
    assert policy.is_packed
    assert not policy.shares_prefixes
    assert "the prompt of siblings is computed for each of them, slower than once" in caplog.text


def test_a_model_that_sees_the_future_is_refused(alone, tmp_path):
    save(tmp_path / "model", {"model_type": "bert"})
    with pytest.raises(ConfigError, match=r"let a token see those behind it.*is_decoder"):
        load_policy(trainer_settings(tmp_path / "model", tmp_path), alone)


@pytest.mark.filterwarnings("ignore")  # the compiler warns about itself
def test_layers_that_do_not_compile_are_refused_only_if_chosen(alone, tmp_path, caplog):
    def broken(*_: object) -> None:
        raise RuntimeError("there is no compiler here")

    save(tmp_path / "model", next(iter(FAMILIES.values())))
    policy = load_policy(trainer_settings(tmp_path / "model", tmp_path), alone)
    for layer in policy.layers:
        layer.compile(backend=broken)
    with pytest.raises(ConfigError, match=r"compile_layers: .*there is no compiler here"):
        compile_ahead(policy, is_chosen=True)
    compile_ahead(policy, is_chosen=False)
    assert "the layers are not compiled" in caplog.text
    policy(pack(rows(3), alone.device))[0].sum().backward()


@pytest.mark.filterwarnings("ignore")  # the compiler warns about itself
def test_an_adapter_does_not_change_whether_layers_are_compiled(alone, tmp_path, monkeypatch):
    """Qwen2.5-0.5B has 494M parameters, and 503M with an adapter of rank 16."""
    save(tmp_path / "model", next(iter(FAMILIES.values())))
    folder = tmp_path / "model"
    size = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    monkeypatch.setattr(parallel, "_SMALL", size + 1)
    monkeypatch.setattr(model_files, "compile_ahead", lambda policy, *, is_chosen: None)
    on_gpu = replace(alone, device=torch.device("cuda"))
    monkeypatch.setattr(
        model_files, "compiles_layers", lambda model, _, settings: compiles_layers(model, on_gpu, settings)
    )
    policy = load_policy(trainer_settings(folder, tmp_path, lora={"rank": 4}), alone)
    assert all(layer._compiled_call_impl is not None for layer in policy.layers)


@pytest.mark.extended  # the compiler takes most of a minute
@pytest.mark.timeout(600)  # and several where other processes compute
@pytest.mark.filterwarnings("ignore")  # it warns about itself
def test_layers_that_are_compiled_at_the_start_are_not_compiled_by_a_step(alone, tmp_path):
    save(tmp_path / "model", next(iter(FAMILIES.values())))
    settings = trainer_settings(tmp_path / "model", tmp_path, parallel={"compile_layers": True})
    policy = load_policy(settings, alone)
    compiled = counters["stats"]["unique_graphs"]
    assert compiled > 0
    for seed in (3, 7):
        segments = [row.segment for row in rows(seed)]
        segments += [after(beginning(segment, len(segment) - 9), segment) for segment in segments]
        batch = pack([Row(segment, 1.0, 1, 0) for segment in segments], alone.device, shares=True)
        with torch.no_grad():
            policy(batch)
        policy(batch)[0].sum().backward()
    assert counters["stats"]["unique_graphs"] == compiled
