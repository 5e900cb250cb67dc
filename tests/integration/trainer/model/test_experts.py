"""Mixtures of experts: loaded from files as on the Hub, trained, and published under the same names."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rl_agent.errors import ConfigError
from rl_agent.served_model.checks import check_model
from rl_agent.served_model.weights import read_tensors
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.data.samples import Segment
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.publish.served import ServedWeights, export, write_tensors
from rl_agent.trainer.grpo.step.optimizer import AdamW
from rl_agent.trainer.grpo.step.start_weights import StartWeights
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import SnapshotStore
from tests.integration.trainer.model.tiny_experts import EXPERTS, FAMILIES, make_experts
from tests.integration.trainer.samples import random_groups
from tests.integration.trainer.settings import trainer_settings
from tests.unit.weights.weight_versions import settings as publish_settings
from tests.unit.weights.weight_versions import state_of

CPU = torch.device("cpu")
QUICK = 5
SETTINGS = ("config.json", "generation_config.json")


def load(folder: Path, ranks: Ranks, **changes) -> PolicyModel:
    return load_policy(trainer_settings(folder, folder / "output", **changes), ranks)


def train(policy: PolicyModel, ranks: Ranks, folder: Path) -> None:
    """One optimizer step."""
    settings = trainer_settings(folder, folder)
    optimizer = AdamW(policy, settings.optimizer, offload=False)
    start = StartWeights(policy)
    step = UpdateStep(policy, None, ranks, settings.loss, settings.batch, start)
    step.add(random_groups(2))
    step.finish()
    optimizer.update()
    policy.zero_grad(set_to_none=True)


def segments() -> list[Segment]:
    samples = [sample for group in random_groups(2, seed=5) for sample in group.samples]
    return [segment for sample in samples for segment in sample.segments]


def scored(policy: PolicyModel) -> torch.Tensor:
    with torch.no_grad():
        return policy(pack([Row(segment, 1.0, 1, 0) for segment in segments()], CPU))[0]


def scored_by_transformers(model) -> torch.Tensor:
    """The same, one sequence at a time."""
    scores = []
    for segment in segments():
        token_ids = torch.as_tensor(segment.token_ids).long()
        with torch.no_grad():
            logprobs = model(input_ids=token_ids[None], use_cache=False).logits[0].log_softmax(-1)
        chosen = torch.as_tensor(segment.is_response).nonzero()[:, 0]
        scores.append(logprobs[chosen - 1, token_ids[chosen]])
    return torch.cat(scores)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[pytest.mark.extended] if index >= QUICK else [])
        for index, name in enumerate(FAMILIES)
    ],
)
def test_experts_go_from_files_to_a_version_and_back_under_their_own_names(alone, tmp_path, family):
    """Scores equal those of transformers before and after a step; every name and shape stays."""
    base = tmp_path / "base"
    plain = make_experts(base, family)
    policy = load(base, alone)
    assert scored(policy).std() > 0.01
    torch.testing.assert_close(scored(policy), scored_by_transformers(plain), rtol=0, atol=1e-5)
    train(policy, alone, base)

    export(policy, alone, base, tmp_path / "trained", torch.float32)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "trained"))
    assert {name: t.shape for name, t in before.items()} == {name: t.shape for name, t in after.items()}
    assert len(before) >= EXPERTS * 2 or family == "granitemoe"  # its files hold all experts in one tensor
    unmoved = {name for name in before if torch.equal(before[name], after[name])}
    assert unmoved <= policy.files.kept.keys()
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "trained", dtype=torch.float32).eval()
    torch.testing.assert_close(scored_by_transformers(reloaded), scored(policy), rtol=0, atol=1e-5)

    with SnapshotStore(tmp_path / "store", keep_versions=2) as store:
        version = Publisher(store, publish_settings()).publish(1, ServedWeights(policy, torch.float32))
        published = state_of(version)
        assert published.keys() == after.keys()
        assert all(torch.equal(published[name], after[name]) for name in after)


def test_untrained_weights_keep_their_type_and_bytes(alone, tmp_path):
    """A bias of the router in fp32 decides which experts compute: rounded, engines would choose others."""
    base = tmp_path / "base"
    make_experts(base, "deepseek_v3")
    (base / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    tensors = load_file(base / "model.safetensors")
    tensors["model.layers.2.eh_proj.weight"] = torch.randn(3, 5)  # a drafting head
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    policy = load(base, alone)
    train(policy, alone, base)
    export(policy, alone, base, tmp_path / "trained", torch.bfloat16)
    after = load_file(tmp_path / "trained/model.safetensors")
    kept = {"model.layers.2.eh_proj.weight", "model.layers.1.mlp.gate.e_score_correction_bias"}
    assert policy.files.kept.keys() == kept
    assert all(torch.equal(after[name], tensors[name]) for name in kept)
    assert {after[name].dtype for name in after.keys() - kept} == {torch.bfloat16}
    config, settings = (json.loads((base / name).read_text()) for name in SETTINGS)
    written, unchanged = (json.loads((tmp_path / "trained" / name).read_text()) for name in SETTINGS)
    assert (written, unchanged) == (config | {"dtype": "bfloat16"}, settings)
    specs = {spec.name: spec.dtype for spec in ServedWeights(policy, torch.bfloat16).specs}
    assert {specs.pop(name) for name in kept} == {"F32"} and set(specs.values()) == {"BF16"}


def test_files_with_all_experts_in_one_tensor_load_and_publish_unchanged(alone, tmp_path):
    plain = make_experts(tmp_path, "qwen3_moe")
    plain.save_pretrained(tmp_path, save_original_format=False)
    policy = load(tmp_path, alone)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.layers.0.mlp.experts.gate_up_proj" in names
    assert {spec.name for spec in ServedWeights(policy, torch.float32).specs} == names
    torch.testing.assert_close(scored(policy), scored_by_transformers(plain), rtol=0, atol=1e-5)


def test_files_of_the_model_without_its_head_keep_their_names(alone, tmp_path):
    plain = make_experts(tmp_path, "mixtral", tie_word_embeddings=True)
    plain.model.save_pretrained(tmp_path)
    policy = load(tmp_path, alone)
    assert any(
        name.startswith("layers.0.block_sparse_moe.") for name in load_file(tmp_path / "model.safetensors")
    )
    specs = {spec.name for spec in ServedWeights(policy, torch.float32).specs}
    assert specs == load_file(tmp_path / "model.safetensors").keys()
    torch.testing.assert_close(scored(policy), scored_by_transformers(plain), rtol=0, atol=1e-5)


def test_a_model_is_written_in_files_of_limited_size_that_hold_it_together(alone, tmp_path):
    """Memory beyond the model's own is one file."""
    base, trained = tmp_path / "base", tmp_path / "trained"
    make_experts(base, "qwen3_moe")
    source = ServedWeights(load(base, alone), torch.float32)
    trained.mkdir()
    write_tensors(source, trained, file_bytes=60_000)
    files = sorted(trained.glob("model-*-of-*.safetensors"))
    assert len(files) > 5 and max(file.stat().st_size for file in files) < 70_000
    written, expected = read_tensors(trained), load_file(base / "model.safetensors")
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        with safe_open(written[name].file, "pt") as file:
            assert torch.equal(file.get_tensor(name), tensor)


def test_a_trained_mixture_passes_the_checks_of_a_model_that_is_served(alone, tmp_path):
    from tests.integration.tiny_model import make_tiny_model

    base = make_tiny_model(tmp_path / "base", experts=EXPERTS)
    policy = load(base, alone)
    export(policy, alone, base, tmp_path / "trained", torch.float32)
    assert check_model(tmp_path / "trained", base).keys() == read_tensors(base).keys()


def test_adapters_leave_the_experts_as_they_are_and_serve_them_so(alone, tmp_path):
    plain = make_experts(tmp_path, "qwen2_moe")
    policy = load(tmp_path, alone, lora={"rank": 4})
    torch.testing.assert_close(scored(policy), scored_by_transformers(plain), rtol=0, atol=1e-5)
    train(policy, alone, tmp_path)
    before, after = (
        load_file(tmp_path / "model.safetensors"),
        dict(ServedWeights(policy, torch.float32).tensors()),
    )
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert "model.layers.0.self_attn.q_proj.weight" in moved
    assert "model.layers.0.mlp.shared_expert.up_proj.weight" in moved
    assert not any(".experts." in name for name in moved)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["q_proj", "up_proj"], r"trainer.lora.targets: up_proj: .*experts.0.up_proj.weight is of experts"),
        (["gate_up_proj"], r"trainer.lora.targets: gate_up_proj: .*mlp.experts.gate_up_proj is of experts"),
        (["wide_proj"], r"trainer.lora.targets: Target modules .*wide_proj.* not found"),
    ],
)
def test_adapters_that_would_not_be_on_the_experts_are_refused(alone, tmp_path, targets, message):
    make_experts(tmp_path, "qwen2_moe")
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, alone, lora={"rank": 4, "targets": targets})
