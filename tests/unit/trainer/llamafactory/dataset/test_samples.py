"""The samples of an update: drawn from the last iterations, with the tokens that were recorded."""

import pytest

from rl_agent.trainer.llamafactory.dataset.samples import collect_samples
from rl_agent.trainer.llamafactory.model import ServedVersion
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard


@pytest.fixture
def collected(plan_of):
    """Return a function that collects the samples after some iterations were recorded."""

    def collect(*iterations, words=()):
        plan = plan_of(*words)
        for number, episodes in enumerate(iterations, start=1):
            write_shard(plan.paths.shard("train", number), make_header(number), *episodes)
        return collect_samples(plan.config, len(iterations), ServedVersion.of(plan.config))

    return collect


def episode(index, iteration=1, text="yes", **rest):
    return make_trajectory(index, iteration=iteration, steps=(make_step(f"{text}<|im_end|>"),), **rest)


def test_only_steps_of_rewarded_episodes_are_drawn_and_tasks_counted(collected):
    samples = collected([episode(0), episode(1, reward=0.0), episode(2)])
    assert (len(samples.training), samples.candidates, samples.tasks) == (2, 2, 2)
    assert {step.key.task_id for step in samples.training} == {"task-0", "task-2"}
    assert samples.left_out == {} and not samples.validation


def test_only_the_last_iterations_count_oldest_first(collected):
    words = ("trainer.recent_iterations=2",)
    samples = collected([episode(0)], [episode(1, 2)], [episode(2, 3)], words=words)
    assert {step.key.task_id for step in samples.training} == {"task-1", "task-2"}
    assert samples.iterations == (2, 3)


def test_held_out_steps_are_not_trained_on_and_long_ones_are_counted(collected, caplog):
    words = ("trainer.do_eval=true", "trainer.val_split_ratio=0.5", "trainer.cutoff_len=40")
    long = episode(9, text="a" * 500)
    samples = collected([*map(episode, range(4)), long], words=words)
    assert len(samples.training) + len(samples.validation) == 4 and samples.validation
    assert not samples.training.keys() & samples.validation.keys()
    assert sum(samples.left_out.values()) == 1 and "positive steps that are left out: 1" in caplog.text


def test_without_a_rewarded_episode_there_is_nothing(collected):
    samples = collected([episode(0, reward=0.0)])
    assert not samples.training and samples.candidates == samples.tasks == 0
