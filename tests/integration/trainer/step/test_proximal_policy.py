"""Steps of an iteration after its first: clipped against the weights that it began with, whatever happens."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_agent.trainer.grpo.checkpoint.progress import read_progress
from rl_agent.trainer.grpo.checkpoint.states import saved_steps
from rl_agent.trainer.grpo.data.samples import Group, Versions
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks, whole
from rl_agent.trainer.grpo.trainer import Trainer
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.samples import random_groups
from tests.integration.trainer.settings import trainer_settings
from tests.integration.trainer.step.test_order import Arriving
from tests.unit.config.overrides.test_compose import compose

STEPS = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model")


def shipped(**changes: Any) -> dict[str, Any]:
    """The loss that `trainer=grpo` comes with, without a reference model."""
    return compose("trainer=grpo").config.grpo.loss.model_dump() | {"kl_in": "none"} | changes


def of_version(groups: list[Group], iteration: int, version: int) -> list[Group]:
    return [
        dataclasses.replace(
            group,
            key=f"{iteration}/{group.key}",
            samples=tuple(dataclasses.replace(s, versions=Versions(version, version)) for s in group.samples),
        )
        for group in groups
    ]


def train(
    ranks: Ranks,
    base: Path,
    output: Path,
    *,
    versions=(0,),
    stops: int | None = None,
    batch=None,
    **loss: Any,
):
    """Iterations of STEPS steps on groups sampled from `versions`; the weights, and each step's metrics.

    `stops`: groups of the last iteration that are left when the trainer is started again.
    """
    settings = trainer_settings(
        base, output, groups=2 * STEPS, mini_batches=STEPS, batch=batch or {},
        loss=shipped(**loss), optimizer={"learning_rate": 0.03, "max_grad_norm": 1e9},
    )  # fmt: skip
    iterations = [
        of_version(random_groups(2 * STEPS, turns=1, seed=iteration), iteration, version)
        for iteration, version in enumerate(versions, start=1)
    ]
    for stop in ([stops] if stops is not None else []) + [None]:
        policy = load_policy(settings, ranks)
        trainer = Trainer(settings, ranks, policy, None)
        trainer.resume()
        while trainer.iteration < len(versions):
            iteration = trainer.iteration + 1
            source = Arriving(iterations[iteration - 1])
            is_last = iteration == len(versions)
            source.stops_at, source.trainer = stop if is_last else None, trainer
            if not trainer.train_iteration(iteration, source, next_version=iteration):
                break
            trainer.save_at_times()
        trainer.close()
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {name: whole(p.detach()).clone() for name, p in policy.named_parameters()}, lines


def test_a_changed_clip_changes_the_later_steps_with_shipped_settings(alone, base, tmp_path):
    _, shipped = train(alone, base, tmp_path / "one")
    _, other = train(alone, base, tmp_path / "other", clip_high=0.5)
    norms, others = ([step["update_step/grad_norm"] for step in steps] for steps in (shipped, other))
    assert norms[0] == others[0]
    assert norms[1] != others[1]
    clipped = [step["trainer/clip_fraction"] for step in shipped]
    assert clipped[0] == 0 and min(clipped[1:]) > 0.01
    assert shipped[0]["trainer/ratio_max"] == 1
    _, inert = train(alone, base, tmp_path / "inert", proximal="current")
    assert [step["trainer/clip_fraction"] for step in inert] == [0, 0, 0]


def test_stopped_between_steps_the_rest_is_clipped_against_equal_weights(alone, base, tmp_path):
    expected, _ = train(alone, base, tmp_path / "whole", versions=(0, 1))
    resumed, steps = train(alone, base, tmp_path / "stopped", versions=(0, 1), stops=3)
    for name, weight in expected.items():
        assert torch.equal(resumed[name], weight), name
    assert [step["trainer/clip_fraction"] > 0 for step in steps] == [False, True, True] * 2
    assert not read_progress(list(saved_steps(tmp_path / "stopped" / "checkpoints").values())[-1]).has_start


@pytest.mark.parametrize(
    "stops", [None, pytest.param(3, marks=pytest.mark.extended)], ids=["at once", "restarted"]
)
def test_a_step_says_how_many_updates_its_oldest_tokens_are_old(alone, base, tmp_path, stops):
    _, steps = train(alone, base, tmp_path, versions=(0, 0, 2), stops=stops, batch={"max_staleness": 1})
    assert [step["trainer/updates_since_sampling"] for step in steps] == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert [step.get("trainer/staleness/1") for step in steps] == [None] * 3 + [8] * 3 + [None] * 3
