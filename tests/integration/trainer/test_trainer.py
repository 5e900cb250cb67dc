"""A step whose gradient is not finite changes nothing but the count of steps, also over a restart."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_agent.trainer.grpo.data.samples import Group
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks, whole
from rl_agent.trainer.grpo.trainer import Trainer
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.samples import random_groups
from tests.integration.trainer.settings import trainer_settings
from tests.integration.trainer.step.test_order import Arriving

GROUPS = 4


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model")


def overflowing(group: Group) -> Group:
    """The same with a reward that no gradient survives."""
    samples = (dataclasses.replace(sample, reward=np.inf) for sample in group.samples)
    return dataclasses.replace(group, key=f"{group.key}x", samples=tuple(samples))


def trained(ranks: Ranks, base: Path, output: Path, arriving: list[Group], *, stops: int | None):
    """Weights and moments, and the steps' metrics; `stops`: groups that are left at a restart."""
    settings = trainer_settings(base, output, groups=len(arriving), mini_batches=len(arriving))
    for stop in ([stops] if stops is not None else []) + [None]:
        policy = load_policy(settings, ranks)
        trainer = Trainer(settings, ranks, policy, None)
        trainer.resume()
        source = Arriving(arriving)
        source.stops_at, source.trainer = stop, trainer
        trainer.train_iteration(1, source, next_version=1)
        trainer.close()
    moments = trainer._optimizer.moments
    tensors = {name: whole(p.detach()).clone() for name, p in policy.named_parameters()}
    tensors |= {f"{name}/{n}": m for name, pair in moments.items() for n, m in enumerate(pair)}
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return tensors, lines


@pytest.mark.parametrize("stops", [None, 3], ids=["at once", "restarted"])
def test_skipped_steps_leave_the_weights_of_a_training_without_them(alone, base, tmp_path, stops):
    groups = random_groups(GROUPS, turns=1)
    spoilt = [overflowing(groups[0]), groups[0], overflowing(groups[1]), *groups[1:]]
    expected, _ = trained(alone, base, tmp_path / "expected", groups, stops=None)
    weights, steps = trained(alone, base, tmp_path / "found", spoilt, stops=stops)
    assert [step["trainer/is_skipped"] for step in steps] == [1, 0, 1, 0, 0, 0]
    assert [step["update_step"] for step in steps] == list(range(1, GROUPS + 3))
    for name, tensor in expected.items():
        assert torch.equal(weights[name], tensor), name
