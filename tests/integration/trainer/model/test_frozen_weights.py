"""Weights that are not trained take half the memory where layers compute in bf16, and change no number."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_agent.trainer.grpo.model.lora import base_parameters, served_weights
from rl_agent.trainer.grpo.model.model_files import load_policy, load_reference
from rl_agent.trainer.grpo.model.parallel import Ranks, local, whole
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.settings import TrainerSettings
from rl_agent.trainer.grpo.step.optimizer import AdamW
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.samples import random_groups
from tests.integration.trainer.settings import trainer_settings

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """The same model in bf16, in fp32 with the numbers of bf16, and in fp32 with its own."""
    root = tmp_path_factory.mktemp("models")
    own = make_tiny_model(root / "own")
    model = AutoModelForCausalLM.from_pretrained(own, dtype=torch.bfloat16)
    model.save_pretrained(root / "half")
    model.float().save_pretrained(root / "full")
    return {name: root / name for name in ("half", "full", "own")}


def settings_for(folder: Path, *, precision: str = "bf16", rank: int | None = 4, **loss) -> TrainerSettings:
    sections = {"lora": {"rank": rank}, "parallel": {"precision": precision}, "loss": loss}
    return trainer_settings(folder, folder.parent, **sections)


def frozen_dtypes(policy: PolicyModel) -> set[torch.dtype]:
    return {local(p.data).dtype for p in base_parameters(policy.model).values()}


def trained(ranks: Ranks, folder: Path) -> PolicyModel:
    """Two optimizer steps on an adapter, with a KL term."""
    settings = settings_for(folder, kl_in="loss")
    policy = load_policy(settings, ranks)
    reference = load_reference(settings, ranks, policy)
    optimizer = AdamW(policy, settings.optimizer, offload=False)
    for seed in range(2):
        step = UpdateStep(policy, reference, ranks, settings.loss, settings.batch)
        step.add(random_groups(2, seed=seed))
        step.finish()
        optimizer.update()
        policy.zero_grad(set_to_none=True)
    return policy


def test_an_adapter_over_half_sized_weights_learns_and_serves_equal_bits(alone, folders):
    half, full = trained(alone, folders["half"]), trained(alone, folders["full"])
    assert frozen_dtypes(half) == {torch.bfloat16} and frozen_dtypes(full) == {torch.float32}
    own = {name: p for name, p in full.named_parameters() if p.requires_grad}
    for name, weight in half.named_parameters():
        if weight.requires_grad:
            assert local(weight.data).dtype == torch.float32
            assert torch.equal(whole(weight.detach()), whole(own[name].detach())), name
    expected = served_weights(full.model)
    for name, weight in served_weights(half.model).items():
        served = whole(weight.detach())
        assert served.dtype == weight.dtype
        assert torch.equal(served.float(), whole(expected[name].detach())), name


@pytest.mark.parametrize(
    ("name", "precision"), [("own", "bf16"), ("half", "fp32")], ids=["an fp32 model", "computed in fp32"]
)
def test_frozen_weights_stay_in_fp32_where_half_would_lose_something(alone, folders, name, precision):
    policy = load_policy(settings_for(folders[name], precision=precision), alone)
    assert frozen_dtypes(policy) == {torch.float32}


def test_a_reference_model_is_half_as_large_and_the_policy_is_not(alone, folders):
    settings = settings_for(folders["half"], rank=None, kl_in="loss")
    policy = load_policy(settings, alone)
    reference = load_reference(settings, alone, policy)
    assert frozen_dtypes(policy) == {torch.float32}
    assert isinstance(reference, PolicyModel) and frozen_dtypes(reference) == {torch.bfloat16}
    step = UpdateStep(policy, reference, alone, settings.loss, settings.batch)
    step.add(random_groups(2))
    assert step.finish()["kl"] == pytest.approx(0.0, abs=1e-9)
