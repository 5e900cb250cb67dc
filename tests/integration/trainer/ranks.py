"""One rank of a trainer that computes a mini-batch's gradient in every CASE; torchrun starts it.

    trainer_ranks.py FOLDER

Rank 0 writes gradients and metrics of each into FOLDER, a safetensors file a case.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rl_agent.config.sections.grpo import ParallelSettings
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.comparison import Comparison
from rl_agent.trainer.grpo.data.intake import with_masks
from rl_agent.trainer.grpo.model.lora import WithoutAdapter, add_adapter, initialize
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks, grid, join_ranks, local, shard, whole
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.publish.served import ServedWeights
from rl_agent.trainer.grpo.step.start_weights import StartWeights
from rl_agent.trainer.grpo.step.update_step import UpdateStep
from tests.integration.trainer.model.tiny_experts import make_experts
from tests.integration.trainer.model.tiny_vision import lone_picture, pictures, vision_groups, vision_policy
from tests.integration.trainer.samples import random_groups, tiny_policy
from tests.integration.trainer.settings import (
    PARALLEL,
    batch_settings,
    lora_settings,
    loss_settings,
    trainer_settings,
)

ORDER = [3, 0, 5, 1, 4, 2]

LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"advantage": "dr_grpo", "normalization": "dr_grpo"},
    "sequence_mean with KL in the loss": {"normalization": "sequence_mean", "kl_in": "loss"},
    "rloo with KL in the reward": {"advantage": "rloo", "kl_in": "reward", "kl_estimator": "k1"},
    "reinforce with an entropy bonus": {"advantage": "reinforce", "entropy_coefficient": 0.01},
    "clipped against the engine": {"proximal": "behaviour", "correction": "none"},
    "a later step of an iteration": {"proximal": "iteration", "kl_in": "loss"},
    "masked importance": {"correction": "mask", "correction_low": 0.2, "correction_high": 5.0},
}
OF_SEQUENCES: dict[str, dict[str, Any]] = {
    "gspo with a geometric mask": {
        "policy_loss": "gspo",
        "normalization": "sequence_mean",
        "proximal": "iteration",
        "sequence_mask": "geometric",
        "sequence_mask_bound": 1.2,
    },
}
"""A ratio or a weight is one of a whole sequence, wherever its micro-batch ends."""
OVERLONG: dict[str, dict[str, Any]] = {
    "overlong responses masked": {"overlong": "mask", "normalization": "sequence_mean"},
    "overlong responses penalized": {"overlong": "penalty", "longest_response": 20, "overlong_cache": 8},
}
"""Ranks have no part in these."""
SHAPES: dict[str, dict[str, Any]] = {
    "sequences longer than a micro-batch": {"groups": {"count": 6, "longest": 120}},
    "fewer sequences than ranks": {
        "groups": {"count": 1, "size": 1, "turns": 1},
        "advantage": "reinforce",
    },
}
SHARED: dict[str, Any] = {"groups": {"count": 6, "prompt": 40}, "shares": True}
VARIANTS = (
    LOSSES
    | OF_SEQUENCES
    | SHAPES
    | {
        "weights gathered at once": {"parallel": {"reshard_after_forward": None}, "kl_in": "loss"},
        "prompts computed once": SHARED,
        "prompts computed once, KL in the loss": SHARED | {"kl_in": "loss"},
        "one group, its prompt computed once": SHARED | {"groups": {"count": 1, "prompt": 40}},
    }
)
"""The content of a mini-batch, and the numbers computed of it."""


OF_MICRO_BATCHES = ("micro_batches", "computed_tokens")
"""Metrics that depend on how a mini-batch is cut."""


class Case(NamedTuple):
    variant: str
    shard_size: int
    arrival: str
    """`whole` or `streamed`."""
    adapter: bool = False


EXPERTS = "experts, read from files"
ONE_BY_ONE: dict[str, dict[str, Any]] = {
    "one sequence after the other": {"is_packed": False, "kl_in": "loss"},
    "one after the other, fewer than ranks": SHAPES["fewer sequences than ranks"] | {"is_packed": False},
}
IMAGES: dict[str, dict[str, Any]] = {
    f"{kind}, {images}, tower {'frozen' if is_frozen else 'trained'}": {
        "vision": {
            "kind": kind,
            "freeze_vision_tower": is_frozen,
            "activation_checkpointing": 0.0 if is_frozen else 1.0,
        },
        "images": images,
    }
    for kind, images, is_frozen in (
        ("qwen3_vl", "many", True),
        ("qwen3_vl", "many", False),
        ("qwen3_vl", "one", True),
        ("qwen3_vl", "one", False),
        ("qwen2_5_vl", "many", False),
        ("qwen3_5", "many", False),
    )
}
"""Sequences with images; of two ranks only one ever sees the one."""
LONE_IMAGE = "qwen3_vl, one, tower trained"
IN_EVERY_WAY = ("grpo", "fewer sequences than ranks")
"""Variants with every sharding and arrival; the others are streamed over shards, as a run does it."""
ADAPTED = (*IN_EVERY_WAY, "sequence_mean with KL in the loss", "one group, its prompt computed once")
CASES = [
    *(Case(variant, size, "whole") for variant in IN_EVERY_WAY for size in (1, 2)),
    *(Case(variant, 1, "streamed", adapter) for variant in IN_EVERY_WAY for adapter in (False, True)),
    *(Case(variant, 2, "streamed") for variant in VARIANTS),
    *(Case(variant, 2, "streamed", adapter=True) for variant in ADAPTED),
    *(Case(variant, size, "streamed") for variant in (EXPERTS, *ONE_BY_ONE, LONE_IMAGE) for size in (1, 2)),
    *(Case(variant, 2, "streamed") for variant in IMAGES if variant != LONE_IMAGE),
    *(Case(LONE_IMAGE, size, "streamed", adapter=True) for size in (1, 2)),
]


@contextmanager
def single_rank() -> Iterator[Ranks]:
    """This process as the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield grid(torch.device("cpu"), None)
    finally:
        dist.destroy_process_group()


def adapted_policy(ranks: Ranks, vision: dict | None = None) -> PolicyModel:
    """A policy with an adapter that says something, the same on any number of ranks."""
    kept = {"activation_checkpointing": 0.0}
    policy = tiny_policy(seed=0) if vision is None else vision_policy(**vision | kept)
    add_adapter(policy.model, lora_settings(rank=4))
    shard(policy, ranks, ParallelSettings.model_validate(PARALLEL))
    initialize(policy.model, seed=1)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            local(parameter.data).fill_(0.02)
    return policy


@torch.no_grad()
def move(policy: PolicyModel) -> None:
    """Change the trained weights by a tenth, as an update does."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            local(parameter).mul_(1.1)


def experts_policy(ranks: Ranks) -> PolicyModel:
    """A mixture of experts from a folder; over two ranks the experts divide unevenly."""
    with tempfile.TemporaryDirectory() as folder:
        make_experts(Path(folder), "qwen3_moe")
        settings = trainer_settings(Path(folder), Path(folder))
        policy = load_policy(settings, ranks)
        expected = load_file(Path(folder, "model.safetensors"))
        served = dict(ServedWeights(policy, torch.float32).tensors())
        assert served.keys() == expected.keys()
        assert all(torch.equal(served[name], expected[name]) for name in expected)
    return policy


def compute(
    ranks: Ranks,
    arrival: str,
    *,
    parallel: dict | None = None,
    adapter: bool = False,
    experts: bool = False,
    is_packed: bool = True,
    shares: bool = False,
    dtype: torch.dtype = torch.float32,
    groups: dict | None = None,
    vision: dict | None = None,
    images: str = "",
    folder: Path | None = None,
    **loss: Any,
) -> tuple[dict, dict]:
    """(gradients by name, metrics) of the same groups, at once or one by one in another order.

    Pictures are made in `folder`.
    """
    settings = loss_settings(**loss)
    if adapter:
        policy = adapted_policy(ranks, vision)
        policies: list = [policy] + [WithoutAdapter(policy)] * (settings.kl_in != "none")
    elif experts:
        policies = [experts_policy(ranks)]
    elif vision is not None:
        policies = [vision_policy(**vision).double()]
        shares = vision["kind"] == "qwen3_vl"
        shard(policies[0], ranks, ParallelSettings.model_validate(PARALLEL))
    else:
        seeds = (0,) if settings.kl_in == "none" else (0, 9)
        policies = [tiny_policy(seed=seed, is_packed=is_packed).to(dtype) for seed in seeds]
        chosen = ParallelSettings.model_validate(PARALLEL | (parallel or {}))
        for policy in policies:
            shard(policy, ranks, chosen, is_compiled=bool(chosen.compile_layers))
    for policy in policies:
        if isinstance(policy, PolicyModel):
            policy.shares_prefixes = shares
    budget = 10_000 if arrival == "whole" else 150
    start = StartWeights(policies[0])
    if settings.proximal == "iteration":
        start.keep()
        move(policies[0])
    batch = batch_settings(token_budget=budget)
    step = UpdateStep(policies[0], (*policies[1:], None)[0], ranks, settings, batch, start)
    comparison = Comparison(settings)
    if vision is not None:
        assert folder is not None
        files = pictures(policies[0].model.config, folder)
        random = vision_groups(files) if images == "many" else lone_picture(files)
    else:
        random = random_groups(**(groups or {"count": len(ORDER)}))
    masked = [with_masks(group, comparison) for group in random]
    if arrival == "whole":
        step.add(masked)
    else:
        for index in [index for index in ORDER if index < len(masked)]:
            step.add([masked[index]])
    metrics = step.finish()
    gradients = {name: whole(p.grad).clone() for name, p in policies[0].named_parameters() if p.requires_grad}
    return gradients, metrics


def distance(gradients: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest relative difference of a weight's gradient."""
    assert gradients.keys() == expected.keys()
    return max(float((gradients[n] - expected[n]).norm() / expected[n].norm()) for n in expected)


@cache
def of_two_ranks() -> dict[Case, tuple[dict, dict]]:
    """(gradients, metrics) of two gloo ranks in every case, from one start: it takes longer than they do."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        argv += [str(PROJECT_ROOT / "tests/integration/trainer/ranks.py"), folder]
        environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-4000:]
        return {case: read(Path(folder, str(index))) for index, case in enumerate(CASES)}


def results(variant: str, *, adapter: bool = False) -> dict[Case, tuple[dict, dict]]:
    """(gradients, metrics) of two ranks in all cases of a variant."""
    return {c: result for c, result in of_two_ranks().items() if c[::3] == (variant, adapter)}


def read(output: Path) -> tuple[dict, dict]:
    with safe_open(output, "pt") as file:
        metrics = json.loads(file.metadata()["metrics"])
        return {name: file.get_tensor(name) for name in file.keys()}, metrics  # noqa: SIM118


def main() -> None:
    torch.set_num_threads(1)
    with join_ranks(None, timeout_s=120) as met, tempfile.TemporaryDirectory() as folder:
        for index, case in enumerate(CASES):
            gradients, metrics = compute(
                grid(met.device, case.shard_size),
                case.arrival,
                adapter=case.adapter,
                experts=case.variant == EXPERTS,
                folder=Path(folder),
                **(VARIANTS | ONE_BY_ONE | IMAGES).get(case.variant, {}),
            )
            if met.rank == 0:
                save_file(gradients, Path(sys.argv[1], str(index)), {"metrics": json.dumps(metrics)})


if __name__ == "__main__":
    main()
