"""The same batch, model and settings through TRL's GRPO loss: equal loss, equal gradient."""

import warnings

import numpy as np
import pytest
import torch

from rl_agent.config.sections.grpo import ParallelSettings
from rl_agent.trainer.grpo.data.samples import Group
from rl_agent.trainer.grpo.model.parallel import Ranks, shard, whole
from rl_agent.trainer.grpo.step.advantages import group_advantages
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.samples import random_groups, tiny_policy
from tests.integration.trainer.settings import PARALLEL, batch_settings, loss_settings
from tests.integration.trainer.step.trl_import import import_trl

pytestmark = pytest.mark.extended

LONGEST = 40

VARIANTS = {
    "GRPO": ({"normalization": "sequence_mean"}, {"loss_type": "grpo"}),
    "token mean": ({"normalization": "token_mean"}, {"loss_type": "bnpo"}),
    "DAPO": (
        {"normalization": "token_mean", "proximal": "behaviour", "clip_high": 0.28},
        {"loss_type": "dapo", "epsilon_high": 0.28},
    ),
    "Dr. GRPO": (
        {"normalization": "dr_grpo", "advantage": "dr_grpo", "constant_length": LONGEST},
        {"loss_type": "dr_grpo", "max_completion_length": LONGEST},
    ),
    "KL in the loss": (
        {"normalization": "sequence_mean", "kl_in": "loss", "kl_coefficient": 0.04},
        {"loss_type": "grpo", "beta": 0.04},
    ),
    "clipped on both sides": (
        {"normalization": "sequence_mean", "proximal": "behaviour", "dual_clip": 1.5},
        {"loss_type": "grpo", "delta": 1.5},
    ),
    "truncated importance": (
        {"normalization": "sequence_mean", "correction": "truncate", "correction_high": 2.0},
        {"loss_type": "grpo", "vllm_importance_sampling_cap": 2.0},
    ),
    "GSPO": (
        {"normalization": "sequence_mean", "proximal": "behaviour", "policy_loss": "gspo", "clip_high": 0.02},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_high": 0.02},
    ),
    "temperature": (
        {"normalization": "sequence_mean", "temperature": 0.8},
        {"loss_type": "grpo", "temperature": 0.8},
    ),
}


def single_turn_groups() -> list[Group]:
    """Four groups of four prompts and responses; the engine's logprobs are near the policy's."""
    policy = tiny_policy()
    policy.model.set_attn_implementation("sdpa")
    generator = np.random.default_rng(2)
    groups = random_groups(4, turns=1, longest=LONGEST)
    for group in groups:
        for sample in group.samples:
            (segment,) = sample.segments
            token_ids = torch.as_tensor(segment.token_ids).long()
            with torch.no_grad():
                log_p = policy.model(input_ids=token_ids[None], use_cache=False).logits[0].log_softmax(-1)
            own = log_p[:-1].gather(1, token_ids[1:, None]).squeeze(1).numpy()
            noise = generator.normal(0, 0.3, len(own))
            segment.behaviour[1:] = np.where(segment.is_response[1:], own + noise, 0.0)
    return groups


def ours(ranks: Ranks, groups: list[Group], changes: dict) -> tuple[float, dict[str, torch.Tensor]]:
    settings = loss_settings(**{"correction": "none", "dual_clip": None, "clip_high": 0.2} | changes)
    policy = tiny_policy(temperature=settings.temperature)
    reference = tiny_policy(seed=9) if settings.kl_in == "loss" else None
    for each in (policy, reference):
        if each is not None:
            shard(each, ranks, ParallelSettings.model_validate(PARALLEL))
    step = UpdateStep(policy, reference, ranks, settings, batch_settings())
    step.add(groups)
    loss = step.finish()["loss"]
    return loss, {name: whole(p.grad) for name, p in policy.model.named_parameters()}


def trls(folder, groups: list[Group], ours_: dict, changes: dict) -> tuple[float, dict[str, torch.Tensor]]:
    """Compute it by `GRPOTrainer._compute_loss`, on left-padded prompts and right-padded completions."""
    model = tiny_policy().model
    model.set_attn_implementation("sdpa")
    trainer = make_trl_trainer(folder, model, changes)
    samples = [sample for group in groups for sample in group.samples]
    segments = [sample.segments[0] for sample in samples]
    prompts = [s.token_ids[~s.is_response] for s in segments]
    completions = [s.token_ids[s.is_response] for s in segments]
    prompt_ids, prompt_mask = padded(prompts, left=True)
    completion_ids, completion_mask = padded(completions, left=False)
    behaviour, _ = padded([s.behaviour[s.is_response] for s in segments], left=False)
    rewards = [np.array([s.reward for s in group.samples]) for group in groups]
    estimator = ours_.get("advantage", "grpo")
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor(
            np.concatenate([group_advantages(r, estimator) for r in rewards]), dtype=torch.float32
        ),
        "num_items_in_batch": completion_mask.sum(),
    }
    if ours_.get("proximal") == "behaviour":
        inputs["old_per_token_logps"] = behaviour
    if "beta" in changes or "vllm_importance_sampling_cap" in changes:
        scorer = model if "beta" not in changes else tiny_policy(seed=9).model
        scorer.set_attn_implementation("sdpa")
        ids, mask = torch.cat([prompt_ids, completion_ids], 1), torch.cat([prompt_mask, completion_mask], 1)
        with torch.no_grad():
            logps, _ = trainer._get_per_token_logps_and_entropies(scorer, ids, mask, completion_ids.size(1))
        if "beta" in changes:
            inputs["ref_per_token_logps"] = logps
        else:
            trainer.use_vllm = True
            cap = trainer.vllm_importance_sampling_cap
            inputs["importance_sampling_ratio"] = torch.exp(logps - behaviour).clamp(max=cap)
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def make_trl_trainer(folder, model, changes: dict):
    trl = import_trl()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datasets import Dataset
        from transformers import AutoTokenizer

        model.warnings_issued = {}  # it expects what that transformers gave every model
        settings = {"output_dir": str(folder / "trl"), "per_device_train_batch_size": 4, "num_generations": 4}
        settings |= {"use_cpu": True, "bf16": False, "report_to": "none", "epsilon": 0.2}
        settings |= {"gradient_checkpointing": False, "disable_dropout": True} | changes
        settings["beta"] = 0.0  # anything else makes it load a reference model from the hub
        trainer = trl.GRPOTrainer(
            model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=trl.GRPOConfig(**settings),
            train_dataset=Dataset.from_list([{"prompt": "1"}] * 4),
            processing_class=AutoTokenizer.from_pretrained(folder / "model", padding_side="left"),
        )
    trainer.beta = changes.get("beta", 0.0)
    trainer.current_gradient_accumulation_steps = 1  # what its training loop would set
    return trainer


def padded(rows: list[np.ndarray], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    values = np.zeros((len(rows), longest), rows[0].dtype)
    mask = np.zeros((len(rows), longest), np.int64)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(len(row))
        values[index, place], mask[index, place] = row, 1
    tensor = torch.as_tensor(values)
    return tensor if tensor.is_floating_point() else tensor.long(), torch.as_tensor(mask)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl")
    make_tiny_model(folder / "model")
    return folder


@pytest.mark.parametrize(("of_ours", "of_trl"), VARIANTS.values(), ids=VARIANTS)
def test_loss_and_gradient_equal_those_of_trl(alone, folder, of_ours, of_trl):
    groups = single_turn_groups()
    loss, gradients = ours(alone, groups, of_ours)
    expected_loss, expected = trls(folder, groups, of_ours, of_trl)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-7)
    for name, gradient in expected.items():
        difference = float((gradients[name] - gradient).norm() / gradient.norm())
        assert difference < 1e-5, f"{name}: {difference}"
