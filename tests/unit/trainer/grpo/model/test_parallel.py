"""The grid of a trainer's ranks; a process alone is a grid of one, by the same code."""

from dataclasses import replace

import pytest
import torch

from rl_agent.config.sections.grpo import ParallelSettings
from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.model.parallel import (
    compiles_layers,
    computing_dtype,
    gradients,
    grid,
    local,
    whole,
)
from tests.integration.trainer.ranks import single_rank
from tests.integration.trainer.settings import PARALLEL


def test_a_rank_alone_asks_nobody():
    with single_rank() as ranks:
        assert (ranks.rank, ranks.world_size, ranks.shard_size) == (0, 1, 1)
        tensor = torch.tensor([1.0, 2.0])
        ranks.sum(tensor)
        ranks.sum(tensor, over="shard")
        ranks.max_over_world(tensor)
        assert tensor.tolist() == [1.0, 2.0]
        assert ranks.any_of_world(True) and not ranks.any_of_world(False)
        assert ranks.bytes_of_first(b"content") == b"content" and ranks.bytes_of_first(None) is None
        assert ranks.max_over_shards(7) == 7


def test_a_row_that_does_not_divide_the_ranks_is_refused_by_its_key():
    with single_rank(), pytest.raises(ConfigError, match=r"parallel\.shard_size=2: does not divide"):
        grid(torch.device("cpu"), 2)


@pytest.mark.parametrize(
    ("precision", "dtype"), [(None, torch.float32), ("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_layers_compute_in_what_was_asked_for_and_on_a_cpu_in_fp32(precision, dtype):
    settings = ParallelSettings.model_validate(PARALLEL | {"precision": precision})
    with single_rank() as ranks:
        assert computing_dtype(ranks, settings) == dtype


@pytest.mark.parametrize(
    ("settings", "device", "is_compiled"),
    [
        pytest.param({}, "cuda", True, id="small model on a GPU"),
        pytest.param({}, "cpu", False, id="CPU"),
        pytest.param({"use_liger_kernel": True}, "cuda", False, id="Liger's kernels are chosen"),
        pytest.param({"compile_layers": False}, "cuda", False, id="chosen: not"),
        pytest.param({"compile_layers": True}, "cpu", True, id="chosen"),
    ],
)
def test_layers_of_a_small_model_are_compiled_on_a_gpu(settings, device, is_compiled):
    chosen = ParallelSettings.model_validate(PARALLEL | settings)
    with single_rank() as ranks:
        on_device = replace(ranks, device=torch.device(device))
        assert compiles_layers(torch.nn.Linear(2, 2), on_device, chosen) is is_compiled
        with torch.device("meta"):
            large = torch.nn.Linear(500_000, 1_000)
        assert compiles_layers(large, on_device, chosen) is bool(chosen.compile_layers)


def test_the_peak_rate_is_the_given_one_and_a_cpu_has_none_of_its_own():
    with single_rank() as ranks:
        assert ranks.peak_flops_per_s(2.5) == 2.5e12
        assert ranks.peak_flops_per_s(None) is None and ranks.device_name == "cpu"


def test_unshared_weights_are_whole_and_only_trained_ones_have_a_gradient():
    layer = torch.nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    layer(torch.ones(1, 2)).sum().backward()
    assert [each.shape for each in gradients(layer)] == [(2, 2)]
    assert local(layer.weight) is layer.weight and whole(layer.weight) is layer.weight
