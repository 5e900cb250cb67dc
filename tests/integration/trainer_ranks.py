"""One rank of a trainer that computes a mini-batch's gradient; torchrun starts it.

    trainer_ranks.py OUTPUT SHARD_SIZE ARRIVAL

Rank 0 writes gradients and metrics into OUTPUT, a safetensors file. ARRIVAL is `whole` or `streamed`.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from rl_agent.trainer.parallel import Ranks, grid, join_ranks, shard, whole
from rl_agent.trainer.settings import ParallelSettings
from rl_agent.trainer.update_step import UpdateStep
from tests.integration.trainer_samples import random_groups, tiny_policy
from tests.integration.trainer_settings import PARALLEL, batch_settings, loss_settings

ORDER = [3, 0, 5, 1, 4, 2]


@contextmanager
def single_rank() -> Iterator[Ranks]:
    """This process as the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield grid(torch.device("cpu"), None)
    finally:
        dist.destroy_process_group()


def compute(ranks: Ranks, arrival: str, *, parallel: dict | None = None, **loss) -> tuple[dict, dict]:
    """(gradients by name, metrics) of the same six groups, at once or one by one in another order."""
    settings = loss_settings(**loss)
    policies = [tiny_policy(seed=seed) for seed in ((0,) if settings.kl_in == "none" else (0, 9))]
    for policy in policies:
        shard(policy, ranks, ParallelSettings.model_validate(PARALLEL | (parallel or {})))
    budget = 10_000 if arrival == "whole" else 150
    step = UpdateStep(
        policies[0], (*policies[1:], None)[0], ranks, settings, batch_settings(token_budget=budget)
    )
    groups = random_groups(len(ORDER))
    if arrival == "whole":
        step.add(groups)
    else:
        for index in ORDER:
            step.add([groups[index]])
    metrics = step.finish()
    gradients = {name: whole(p.grad).clone() for name, p in policies[0].named_parameters()}
    return gradients, metrics


def main() -> None:
    output, shard_size, arrival = sys.argv[1:]
    torch.set_num_threads(1)
    with join_ranks(int(shard_size), timeout_s=60) as ranks:
        gradients, metrics = compute(ranks, arrival, kl_in="reward", normalization="sequence_mean")
        if ranks.rank == 0:
            save_file(gradients, output, {"metrics": json.dumps(metrics)})


if __name__ == "__main__":
    main()
