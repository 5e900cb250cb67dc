"""Several optimizer steps of TRL's GRPOTrainer, and ours on the very samples that it drew: equal weights.

TRL's side is its whole training loop: sampling, shuffling, loss, gradient clipping, AdamW, schedule. What it
draws is kept, with its logprobs and its advantages, and trained on by ours.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks, whole
from rl_agent.trainer.grpo.step.advantages import group_advantages
from rl_agent.trainer.grpo.step.optimizer import AdamW, clip_gradients
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.settings import trainer_settings
from tests.integration.trainer.step.trl_import import import_trl

pytestmark = pytest.mark.extended

STEPS, PER_STEP, GROUP_SIZE = 8, 8, 4
RATE = 3e-3
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "token mean, gradients clipped": (
        {"loss_type": "bnpo", "max_grad_norm": 0.1},
        {"normalization": "token_mean"},
        {"max_grad_norm": 0.1},
    ),
    "sequence mean, linear decay": (
        {"loss_type": "grpo", "lr_scheduler_type": "linear"},
        {"normalization": "sequence_mean"},
        {"schedule": "linear", "decay_steps": STEPS},
    ),
    "Dr. GRPO, other betas and epsilon": (
        {"loss_type": "dr_grpo", "adam_beta1": 0.8, "adam_beta2": 0.99, "adam_epsilon": 1e-4},
        {"normalization": "dr_grpo", "constant_length": 12},
        {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-4},
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("trl") / "model", seed=1)


def trained_by_trl(model: Path, output: Path, changes: dict[str, Any]) -> tuple[list[dict], list, Any]:
    """Inputs of each step, the rewards of each generation in its order, and the weights at the end."""
    trl = import_trl()
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    steps: list[dict[str, torch.Tensor]] = []
    generations: list[list[float]] = []

    class Kept(trl.GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
            steps.append({name: v.clone() for name, v in inputs.items() if isinstance(v, torch.Tensor)})
            return super()._compute_loss(model, inputs)

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewards = [float(np.mean(np.array(ids) % 2)) for ids in completion_ids]
        generations.append(rewards)
        return rewards

    settings = {"output_dir": str(output), "max_steps": STEPS, "per_device_train_batch_size": PER_STEP}
    settings |= {"steps_per_generation": STEPS // 2, "num_generations": GROUP_SIZE, "seed": 5}
    settings |= {"max_prompt_length": None, "max_completion_length": 12, "beta": 0.0, "epsilon": 0.2}
    settings |= {"learning_rate": RATE, "lr_scheduler_type": "constant", "weight_decay": 0.0}
    settings |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_dropout": True}
    settings["generation_kwargs"] = {"exponential_decay_length_penalty": (1, 1.8)}  # lengths that differ
    settings |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True} | changes
    policy = AutoModelForCausalLM.from_pretrained(model)
    policy.warnings_issued = {}  # it expects what transformers gave every model once
    prompts = [{"prompt": f"What is {n} + {n * 2}?"} for n in range(16)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Kept(
            policy,
            reward_funcs=reward,
            args=trl.GRPOConfig(**settings),
            train_dataset=Dataset.from_list(prompts),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        ).train()
    return steps, generations, {name: p.detach() for name, p in policy.named_parameters()}


def group_of(inputs: dict[str, torch.Tensor]) -> Group:
    """A step's samples; their rewards are the advantages that TRL gave them."""
    samples = []
    for row in range(len(inputs["prompt_ids"])):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()].numpy()
        mask = inputs["completion_mask"][row].bool()
        response = inputs["completion_ids"][row][mask].numpy()
        old = inputs["old_per_token_logps"][row][mask].numpy()
        segment = Segment(
            np.concatenate([prompt, response]).astype(np.int32),
            np.arange(len(prompt) + len(response)) >= len(prompt),
            np.concatenate([np.zeros(len(prompt)), old]).astype(np.float32),
        )
        samples.append(TrainingSample(str(row), (segment,), float(inputs["advantages"][row]), Versions(0, 0)))
    return Group("step", tuple(samples))


def trained_by_ours(ranks: Ranks, model: Path, steps: list[dict], loss: dict, optimizer: dict) -> Any:
    as_trl = {"advantage": "reinforce", "proximal": "behaviour", "correction": "none"}
    as_trl |= {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
    settings = trainer_settings(
        model,
        model.parent,
        loss=as_trl | loss,
        optimizer={"learning_rate": RATE, "weight_decay": 0.0} | optimizer,
    )
    policy = load_policy(settings, ranks)
    adamw = AdamW(policy, settings.optimizer, offload=False)
    for inputs in steps:
        step = UpdateStep(policy, None, ranks, settings.loss, settings.batch)
        step.add([group_of(inputs)])
        norm = step.finish()["grad_norm"]
        clip_gradients(policy, norm, settings.optimizer.max_grad_norm)
        adamw.update()
        policy.zero_grad(set_to_none=True)
    return {name: whole(p.detach()) for name, p in policy.model.named_parameters()}


@pytest.mark.parametrize(("of_trl", "loss", "optimizer"), VARIANTS.values(), ids=VARIANTS)
def test_after_several_steps_the_weights_are_those_of_trl(alone, model, tmp_path, of_trl, loss, optimizer):
    steps, generations, expected = trained_by_trl(model, tmp_path, of_trl)
    assert len(steps) == STEPS and len(generations) == 2
    assert len({int(n) for step in steps for n in step["completion_mask"].sum(1)}) > 4
    weights = trained_by_ours(alone, model, steps, loss, optimizer)
    from transformers import AutoModelForCausalLM

    began = AutoModelForCausalLM.from_pretrained(model).state_dict()
    for name, weight in expected.items():
        moved = (weight - began[name]).norm()
        difference = float((weights[name] - weight).norm() / moved)
        assert moved > 0 and difference < 1e-3, f"{name}: {difference}"
        assert float((weights[name] - weight).abs().max()) < 1e-4, name


def test_advantages_are_those_of_trl_but_for_its_larger_epsilon(model, tmp_path):
    steps, generations, _ = trained_by_trl(model, tmp_path, {"loss_type": "bnpo"})
    for number, rewards in enumerate(generations):
        groups = np.array(rewards, np.float64).reshape(-1, GROUP_SIZE)
        ours = sorted(a for group in groups for a in group_advantages(group, "grpo").tolist())
        half = slice(number * STEPS // 2, (number + 1) * STEPS // 2)
        theirs = sorted(torch.cat([step["advantages"] for step in steps[half]]).tolist())
        assert ours == pytest.approx(theirs, rel=2e-2, abs=1e-6)
