"""The trainer's whole step on episodes of the policy it trains: reward rises, with and without staleness."""

import statistics

import numpy as np
import pytest
import torch

from rl_agent.config.sections.grpo import OptimizerSettings, ParallelSettings
from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.model.parallel import shard
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.step.optimizer import AdamW, clip_gradients
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.trainer.samples import VOCABULARY, tiny_policy
from tests.integration.trainer.settings import OPTIMIZER, PARALLEL, batch_settings, loss_settings

pytestmark = pytest.mark.extended

RESPONSE = 6
GROUPS, GROUP_SIZE = 8, 8


@torch.no_grad()
def sample_groups(engine: PolicyModel, version: int) -> list[Group]:
    """Answer as an engine with these weights does; the reward is the share of tokens in the lower half."""
    count = GROUPS * GROUP_SIZE
    prompts = torch.arange(GROUPS).repeat_interleave(GROUP_SIZE)[:, None]
    token_ids, logprobs = prompts, torch.zeros(count, 1)
    for _ in range(RESPONSE):
        log_p = engine.model(input_ids=token_ids, use_cache=False).logits[:, -1].log_softmax(-1)
        chosen = torch.multinomial(log_p.exp(), 1)
        token_ids = torch.cat([token_ids, chosen], 1)
        logprobs = torch.cat([logprobs, log_p.gather(1, chosen)], 1)
    rewards = (token_ids[:, 1:] < VOCABULARY // 2).float().mean(1).tolist()
    is_response = np.array([False] + [True] * RESPONSE)
    samples = [
        TrainingSample(
            f"{version}:{row}",
            (Segment(token_ids[row].numpy().astype(np.int32), is_response, logprobs[row].numpy()),),
            rewards[row],
            Versions(version, version),
        )
        for row in range(count)
    ]
    starts = range(0, count, GROUP_SIZE)
    return [Group(f"{version}:{start}", tuple(samples[start : start + GROUP_SIZE])) for start in starts]


@pytest.mark.parametrize(
    ("lag", "loss"),
    [
        (0, {"correction": "none"}),
        (2, {"correction": "truncate"}),
        (2, {"correction": "none", "proximal": "behaviour"}),
    ],
    ids=["synchronous", "two versions old, decoupled", "two versions old, clipped against the engine"],
)
def test_reward_rises(alone, lag, loss):
    torch.manual_seed(0)
    policy = tiny_policy()
    shard(policy, alone, ParallelSettings.model_validate(PARALLEL))
    settings = OptimizerSettings.model_validate(OPTIMIZER | {"learning_rate": 3e-3, "weight_decay": 0.0})
    optimizer = AdamW(policy, settings, offload=False)
    engine = tiny_policy()
    engine.model.set_attn_implementation("sdpa")
    waiting = [sample_groups(engine, 0) for _ in range(lag)]
    rewards = []
    for version in range(25):
        weights = {name: p.full_tensor() for name, p in policy.named_parameters()}
        engine.load_state_dict(weights, strict=False)
        newest = sample_groups(engine, version)
        rewards.append(statistics.fmean(sample.reward for group in newest for sample in group.samples))
        waiting.append(newest)
        groups = waiting.pop(0)
        step = UpdateStep(policy, None, alone, loss_settings(**loss), batch_settings())
        for group in groups:
            step.add([group])
        numbers = step.finish()
        clip_gradients(policy, numbers["grad_norm"], settings.max_grad_norm)
        optimizer.update()
        policy.zero_grad(set_to_none=True)
        if lag == 0:
            assert numbers["behaviour_kl"] < 1e-9  # the engine's logprobs are the trainer's
    assert statistics.fmean(rewards[:3]) < 0.6
    assert statistics.fmean(rewards[-3:]) > 0.85
