"""Training an adapter in place of the weights: its gradient, what is served, the policy without it."""

import pytest
import torch
from peft.tuners.lora import LoraLayer
from transformers import GPT2Config, GPT2LMHeadModel

from rl_agent.config.sections.grpo import ParallelSettings
from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.model.lora import WithoutAdapter, add_adapter, served_weights
from rl_agent.trainer.grpo.model.parallel import shard, whole
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.trainer.ranks import (
    adapted_policy,
    compute,
    distance,
)
from tests.integration.trainer.samples import random_groups, tiny_policy
from tests.integration.trainer.settings import PARALLEL, batch_settings, lora_settings, loss_settings

pytestmark = pytest.mark.timeout(240)


SCALING = 8 / 4


def layers(policy) -> dict[str, LoraLayer]:
    return {name: m for name, m in policy.model.named_modules() if isinstance(m, LoraLayer)}


def parts(layer: LoraLayer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """W, A, B."""
    adapter = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    return tuple(whole(p.detach()) for p in (layer.get_base_layer().weight, *adapter))


def batch_of(groups, ranks):
    samples = [sample for group in groups for sample in group.samples]
    rows = [Row(s, 1.0, sample.response_tokens, 0) for sample in samples for s in sample.segments]
    return pack(rows, ranks.device)


def test_served_weights_are_the_merged_ones_to_the_bit(alone):
    policy = adapted_policy(alone)
    weights_served, plain = served_weights(policy.model), dict(tiny_policy(seed=0).model.named_parameters())
    assert weights_served.keys() == plain.keys()
    assert len(layers(policy)) == 3 * 7  # every linear layer of the three
    for name, layer in layers(policy).items():
        w, a, b = parts(layer)
        served = whole(weights_served.pop(f"{name}.weight"))
        assert torch.equal(served.bfloat16(), (w + b @ a * SCALING).bfloat16())
        assert torch.equal(served, w + layer.get_delta_weight("default").full_tensor())  # as peft merges
        assert not torch.equal(served, w)
    assert all(torch.equal(whole(weight), plain[name]) for name, weight in weights_served.items())


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16))


def test_weights_that_lie_transposed_are_merged_as_peft_merges_them():
    model, plain = gpt2(), gpt2().state_dict()
    add_adapter(model, lora_settings(rank=4))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)

    served = served_weights(model)

    adapted = [name for name, m in model.named_modules() if isinstance(m, LoraLayer)]
    assert len(adapted) == 4  # every layer of GPT-2's block
    for name in adapted:
        delta = model.get_submodule(name).get_delta_weight("default")
        assert torch.allclose(served[f"{name}.weight"].full_tensor(), plain[f"{name}.weight"] + delta)


def test_an_embedding_as_target_is_refused():
    with pytest.raises(ConfigError, match=r"transformer\.wte is not a linear layer"):
        add_adapter(gpt2(), lora_settings(rank=4, targets=["wte"]))


def test_its_gradient_is_that_of_the_full_weights_by_the_chain_rule(alone):
    gradients, _ = compute(alone, "streamed", adapter=True)
    policy = adapted_policy(alone)
    merged = tiny_policy(seed=0)
    merged.model.load_state_dict({n: whole(w) for n, w in served_weights(policy.model).items()})
    shard(merged, alone, ParallelSettings.model_validate(PARALLEL))
    step = UpdateStep(merged, None, alone, loss_settings(), batch_settings())
    step.add(random_groups(6))
    step.finish()
    of_full = {name: whole(p.grad) for name, p in merged.named_parameters()}
    expected = {}
    for name, layer in layers(policy).items():
        _, a, b = parts(layer)
        gradient = of_full[f"model.{name}.weight"]
        expected[f"model.{name}.lora_A.default.weight"] = SCALING * b.T @ gradient
        expected[f"model.{name}.lora_B.default.weight"] = SCALING * gradient @ a.T
    assert distance(gradients, expected) < 1e-4


def test_a_streamed_gradient_is_that_of_the_whole_batch(alone):
    whole_batch, _ = compute(alone, "whole", adapter=True, kl_in="loss")
    streamed, _ = compute(alone, "streamed", adapter=True, kl_in="loss")
    assert all("lora" in name for name in streamed)
    assert distance(streamed, whole_batch) < 1e-5


def test_an_adapter_of_the_output_matrix_is_refused():
    settings = lora_settings(rank=4).model_copy(update={"targets": ("q_proj", "lm_head")})
    with pytest.raises(ConfigError, match=r"trainer\.lora\.targets=.*'lm_head'.*name layers before it"):
        add_adapter(tiny_policy().model, settings)


def test_without_its_adapter_it_is_the_model_it_was_made_from(alone):
    policy, plain, batch = adapted_policy(alone), tiny_policy(seed=0), batch_of(random_groups(2), alone)
    with torch.no_grad():
        before, (expected, _) = policy(batch)[0], plain(batch)
    logprobs, _ = WithoutAdapter(policy)(batch)
    assert torch.equal(logprobs, expected)
    assert torch.equal(policy(batch)[0], before) and not torch.equal(before, expected)
    assert sum(p.requires_grad for p in policy.parameters()) == 2 * 3 * 7


def test_the_kl_to_the_policy_without_its_adapter_is_that_to_a_second_copy(alone):
    gradients, metrics = compute(alone, "streamed", adapter=True, kl_in="loss")
    policy, copy = adapted_policy(alone), tiny_policy(seed=0)
    shard(copy, alone, ParallelSettings.model_validate(PARALLEL))
    step = UpdateStep(policy, copy, alone, loss_settings(kl_in="loss"), batch_settings())
    step.add(random_groups(6))
    assert step.finish()["kl"] == pytest.approx(metrics["kl"], rel=1e-5)
    expected = {n: whole(p.grad) for n, p in policy.named_parameters() if p.requires_grad}
    assert distance(gradients, expected) < 1e-5
