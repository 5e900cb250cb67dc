"""The weights do not depend on the order of arrival with `trainer.batch.order=shuffled`."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_agent.paths import RunPaths
from rl_agent.system import files
from rl_agent.system.files import remove
from rl_agent.trainer.grpo.checkpoint import checkpoint
from rl_agent.trainer.grpo.checkpoint.states import saved_steps
from rl_agent.trainer.grpo.data.order import ShuffledOrder
from rl_agent.trainer.grpo.data.samples import Group, Segment
from rl_agent.trainer.grpo.gpu_sharing.window import LearntWindow
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks, whole
from rl_agent.trainer.grpo.trainer import Trainer
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.integration.trainer.samples import random_groups
from tests.integration.trainer.settings import trainer_settings
from tests.integration.trainer.stream import stream_run
from tests.integration.trainer.stream.stream_run import Rollout, make_uniform_model, stream_settings

pytestmark = pytest.mark.timeout(240)
GROUPS, STEPS = 6, 3


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def uniform(tmp_path_factory) -> Path:
    return make_uniform_model(tmp_path_factory.mktemp("uniform") / "model")


def as_sampled(group: Group) -> Group:
    """Give the group the log-probabilities that an engine with the uniform model reports."""

    def of_engine(segment: Segment) -> Segment:
        logprobs = np.where(segment.is_response, stream_run.UNIFORM, 0.0).astype(np.float32)
        return dataclasses.replace(segment, behaviour=logprobs)

    samples = (
        dataclasses.replace(sample, segments=tuple(map(of_engine, sample.segments)))
        for sample in group.samples
    )
    return dataclasses.replace(group, samples=tuple(samples))


class Arriving:
    """A source that gives one group after the other, and may be told to stop its trainer before one."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = list(groups)
        self.stops_at: int | None = None
        self.trainer: Trainer | None = None

    def take(self, most: int) -> list[Group] | None:
        if self.stops_at == len(self.groups) and self.trainer is not None:
            self.trainer.stop()
            return []
        return [self.groups.pop(0)] if self.groups else None


def weights_after(
    ranks: Ranks, base: Path, output: Path, order: list[int], *, is_shuffled: bool, stops_at=None
):
    """Weights after an iteration whose groups arrive in this order, and the metrics' samples of each step."""
    groups = random_groups(GROUPS, turns=1)
    settings = trainer_settings(base, output, groups=GROUPS, mini_batches=STEPS)
    samples = {group.key: [sample.key for sample in group.samples] for group in groups}
    step_order = ShuffledOrder(samples, steps=STEPS, seed="3/1") if is_shuffled else None
    for stop in ([stops_at] if stops_at is not None else []) + [None]:
        policy = load_policy(settings, ranks)
        trainer = Trainer(settings, ranks, policy, None)
        trainer.resume()
        source = Arriving([groups[n] for n in order])
        source.stops_at, source.trainer = stop, trainer
        is_done = trainer.train_iteration(1, source, next_version=1, order=step_order)
        trainer.close()
        assert is_done == (stop is None)
    assert trainer.steps == STEPS
    episodes = [
        json.loads(line)["trainer/episodes"] for line in (output / "metrics.jsonl").read_text().splitlines()
    ]
    assert sum(episodes) == 4 * GROUPS
    return {name: whole(p.detach()).clone() for name, p in policy.named_parameters()}, episodes


def furthest(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def test_shuffled_samples_give_the_same_weights_in_any_order_of_arrival(alone, base, tmp_path):
    forth, back = [0, 1, 2, 3, 4, 5], [5, 2, 4, 0, 3, 1]
    first, episodes = weights_after(alone, base, tmp_path / "a", forth, is_shuffled=True)
    assert episodes == [8, 8, 8]
    assert furthest(first, weights_after(alone, base, tmp_path / "b", back, is_shuffled=True)[0]) < 1e-5
    arrived, _ = weights_after(alone, base, tmp_path / "c", forth, is_shuffled=False)
    assert furthest(arrived, weights_after(alone, base, tmp_path / "d", back, is_shuffled=False)[0]) > 1e-4


def test_groups_of_equal_rewards_leave_the_weights_to_others_in_any_order(alone, base, tmp_path):
    """DAPO's dynamic sampling: each step is filled with other groups, and its means are over those."""
    groups = random_groups(GROUPS, turns=1)
    equal = [dataclasses.replace(s, key=f"e{s.key}", reward=1.0) for s in groups[0].samples]
    endings = []
    for name, order in (("a", [0, 1, 2, 3, 4, 5, 6]), ("b", [6, 4, 2, 0, 5, 3, 1]), ("without", range(6))):
        settings = trainer_settings(
            base, tmp_path / name, groups=GROUPS, loss={"drop_uninformative": True},
            optimizer={"epsilon": 1e-3},  # or noise decides where the gradient is next to nothing
        )  # fmt: skip
        policy = load_policy(settings, alone)
        trainer = Trainer(settings, alone, policy, None)
        trainer.resume()
        arriving = [*groups, Group("1/equal:0", tuple(equal))]
        source = Arriving([arriving[n] for n in order])
        assert trainer.train_iteration(1, source, next_version=1)
        trainer.close()
        endings.append({name: whole(p.detach()).clone() for name, p in policy.named_parameters()})
    assert furthest(endings[0], endings[2]) < 1e-5
    assert furthest(endings[1], endings[2]) < 1e-5


@pytest.mark.extended
@pytest.mark.parametrize("stops_at", [5, 2, 0])
def test_trainer_stopped_in_a_shuffled_iteration_ends_with_equal_weights(alone, base, tmp_path, stops_at):
    order = list(range(GROUPS))
    expected, _ = weights_after(alone, base, tmp_path / "whole", order, is_shuffled=True)
    resumed, _ = weights_after(alone, base, tmp_path / "stopped", order, is_shuffled=True, stops_at=stops_at)
    assert furthest(resumed, expected) < 1e-5


@pytest.mark.extended
def test_live_trainer_shuffles_the_samples_of_its_run(uniform, tmp_path):
    paths, rollout = RunPaths(tmp_path), Rollout(tmp_path)
    lines = (json.dumps({"task_id": f"task-{n}", "prompt": "?"}) + "\n" for n in range(stream_run.GROUPS))
    sizes = ("env_config.train_tasks_rollout_size=-1", f"rollout.group_size={stream_run.GROUP_SIZE}")
    plan = make_plan(tmp_path, uniform, *sizes)
    plan.tasks_file("train").parent.mkdir(parents=True)
    plan.tasks_file("train").write_text("".join(lines))
    plan.write(paths.run_dir("run") / "plan.json")
    settings = stream_settings(tmp_path, uniform, None, last_iteration=1)
    batch = settings.batch.model_copy(update={"order": "shuffled"})
    rollout.whole(1, version=0)
    trainer = stream_run.Trainer(settings.model_copy(update={"batch": batch}))
    assert [process.wait(200) for process in trainer.processes] == [0], trainer.log.read_text()[-3000:]
    steps = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    assert [s["trainer/episodes"] for s in steps if "trainer/episodes" in s] == [8, 8]
    assert "trainer/rejected_groups/not_dealt" not in steps[-1]


def test_lessons_about_windows_outlive_the_trainer(alone, base, tmp_path):
    settings = trainer_settings(base, tmp_path, groups=GROUPS)
    learnt = {1: LearntWindow(180.0, 0.25, -3.5, 120.0), 4: LearntWindow(8.0)}
    trainer = Trainer(settings, alone, load_policy(settings, alone), None)
    trainer.resume()
    trainer.windows = learnt
    assert trainer.train_iteration(1, Arriving(random_groups(GROUPS)), next_version=1)
    trainer.save_at_times()
    trainer.close()
    again = Trainer(settings, alone, load_policy(settings, alone), None)
    again.resume()
    again.close()
    assert again.windows == learnt


def test_a_checkpoint_that_replaces_one_of_the_same_step_leaves_no_gap(alone, base, tmp_path, monkeypatch):
    """An iteration that ends with groups that are turned away makes no step more."""
    settings = trainer_settings(base, tmp_path, groups=GROUPS)
    settings = settings.model_copy(update={"checkpoint": settings.checkpoint.model_copy(update={"keep": 1})})
    trainer = Trainer(settings, alone, load_policy(settings, alone), None)
    trainer.resume()
    trainer.train_iteration(1, Arriving(random_groups(GROUPS)), next_version=1)
    trainer.save()
    trainer.wait_saved()

    def remove_and_die(path: Path) -> None:
        if path.is_dir() and (path / "state.json").exists():
            remove(path)
            raise InterruptedError(path)
        remove(path)

    monkeypatch.setattr(files, "remove", remove_and_die)
    monkeypatch.setattr(checkpoint, "remove", remove_and_die)
    trainer.train_iteration(2, Arriving([]), next_version=2)
    with pytest.raises(InterruptedError):
        trainer.save()
        trainer.wait_saved()
    (left,) = saved_steps(tmp_path / "checkpoints").values()
    assert checkpoint.read_progress(left).iteration == 2


def test_a_run_that_restarts_in_mid_iteration_trains_on_all_its_samples(alone, uniform, tmp_path):
    """Its groups have the keys of those that the run before had trained on when it was stopped."""
    trained = []
    for run_id, stops_at in (("first", 2), ("second", None)):
        settings = stream_settings(tmp_path, uniform, None, run_id=run_id)
        trainer = Trainer(settings, alone, load_policy(settings, alone), None)
        trainer.resume()
        before, source = (
            trainer.steps,
            Arriving([as_sampled(group) for group in random_groups(GROUPS, turns=1)]),
        )
        source.stops_at, source.trainer = stops_at, trainer
        trainer.train_iteration(1, source, next_version=1)
        trainer.close()
        trained.append(trainer.steps - before)
    assert trained == [2, STEPS]
