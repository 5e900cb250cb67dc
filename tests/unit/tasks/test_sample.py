"""Sampling: exact counts, the documented distribution, the same sample everywhere."""

import subprocess
import sys
from collections import Counter
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import ConfigError
from rl_agent.plan.compose import compose_config
from rl_agent.tasks.sample import sample_episodes, shares
from rl_agent.types import Task


@cache
def defaults():
    return compose_config([], data_path=Path("/data"), log_path=Path("/log"), num_gpus=0).config


def config(*, seed=0, group_size=1, **env_config):
    base = defaults()
    return base.model_copy(
        update={
            "seed": seed,
            "env_config": base.env_config.model_copy(update=env_config),
            "rollout": base.rollout.model_copy(update={"group_size": group_size}),
        }
    )


def make_tasks(easy=0, medium=0, hard=0):
    counts = {"easy": easy, "medium": medium, "hard": hard}
    return [Task(f"{d}-{i}", "?", "math", d) for d, count in counts.items() for i in range(count)]


def sample(tasks, *, split="train", iteration=1, batch=0, **settings):
    return sample_episodes(tasks, split=split, iteration=iteration, config=config(**settings), batch=batch)


def ids(specs):
    return [spec.key.task_id for spec in specs]


def test_uniform_starts_another_round_when_the_tasks_are_used_up():
    specs = sample(make_tasks(easy=10), train_tasks_rollout_size=25)

    appearances = Counter(ids(specs))
    assert len(specs) == 25
    assert sorted(appearances.values()) == [2] * 5 + [3] * 5
    for task_id, count in appearances.items():
        groups = [spec.key.group for spec in specs if spec.key.task_id == task_id]
        assert sorted(groups) == list(range(count))


def test_uniform_is_uniform():
    tasks = make_tasks(easy=10)
    drawn = Counter(
        task_id
        for iteration in range(3000)
        for task_id in ids(sample(tasks, iteration=iteration, train_tasks_rollout_size=3))
    )

    # 900 expected each; one standard deviation is 25.
    assert all(abs(count - 900) < 125 for count in drawn.values()), drawn


def test_every_draw_is_attempted_group_size_times_side_by_side():
    specs = sample(make_tasks(easy=5), train_tasks_rollout_size=3, group_size=4)

    assert [spec.key.attempt for spec in specs] == [0, 1, 2, 3] * 3
    assert len({spec.seed for spec in specs}) == 12


def test_test_takes_the_first_tasks_and_repeats_them_as_groups():
    tasks = make_tasks(easy=5)
    specs = sample(tasks, split="test", test_tasks_rollout_size=2, test_tasks_repeat_times=3, group_size=4)

    expected = [("easy-0", 0), ("easy-0", 1), ("easy-0", 2), ("easy-1", 0), ("easy-1", 1), ("easy-1", 2)]
    assert sorted((spec.key.task_id, spec.key.group) for spec in specs) == expected
    assert {spec.key.attempt for spec in specs} == {0}


def test_the_hardest_tasks_start_first():
    tasks = make_tasks(easy=20, medium=20, hard=20)
    for split in ("train", "test"):
        specs = sample(tasks, split=split, train_tasks_rollout_size=60)
        assert [spec.task.difficulty for spec in specs] == ["hard"] * 20 + ["medium"] * 20 + ["easy"] * 20
        assert ids(specs)[:20] != [f"hard-{i}" for i in range(20)]


def test_max_steps_follow_difficulty_and_split():
    limits = {
        "train_difficulty_max_steps": {"easy": 1, "hard": 9},
        "test_difficulty_max_steps": {"easy": 2, "hard": 8},
    }
    tasks = make_tasks(easy=1, hard=1)

    assert {s.task.difficulty: s.max_steps for s in sample(tasks, **limits)} == {"hard": 9, "easy": 1}
    assert {s.task.difficulty: s.max_steps for s in sample(tasks, split="test", **limits)} == {
        "hard": 8,
        "easy": 2,
    }


def test_a_difficulty_without_a_step_limit_is_an_error_that_names_the_key():
    with pytest.raises(ConfigError, match=r"env_config\.test_difficulty_max_steps: no step limit for hard"):
        sample(make_tasks(hard=1), split="test", test_difficulty_max_steps={"easy": 1})


def test_ratio_gives_the_difficulties_their_shares():
    specs = sample(
        make_tasks(easy=50, medium=50, hard=50),
        train_tasks_sampler="ratio",
        train_tasks_rollout_size=100,
        difficulty_ratio={"easy": 2, "medium": 1, "hard": 0.5},
    )

    # 57.14, 28.57, 14.29: the one that is left after rounding down goes to medium.
    assert Counter(spec.task.difficulty for spec in specs) == {"easy": 57, "medium": 29, "hard": 14}


def test_ratio_repeats_a_small_difficulty_rather_than_change_the_shares():
    specs = sample(
        make_tasks(easy=2, hard=50),
        train_tasks_sampler="ratio",
        train_tasks_rollout_size=20,
        difficulty_ratio={"easy": 1, "hard": 1, "medium": 0},
    )

    assert Counter(spec.task.difficulty for spec in specs) == {"easy": 10, "hard": 10}
    assert len({spec.key for spec in specs}) == 20


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        ({"easy": 1, "medium": 1}, "no train task is medium"),
        ({"easy": 1, "extreme": 1}, "unknown difficulty 'extreme'"),
        ({"easy": 0}, "every share is 0"),
        ({}, "every share is 0"),
    ],
)
def test_a_ratio_that_cannot_be_met_is_an_error(ratio, message):
    with pytest.raises(ConfigError, match=message):
        sample(
            make_tasks(easy=5),
            train_tasks_sampler="ratio",
            train_tasks_rollout_size=4,
            difficulty_ratio=ratio,
        )


@given(
    size=st.integers(0, 10_000),
    weights=st.dictionaries(st.text(max_size=2), st.floats(0.001, 1000), min_size=1, max_size=6),
)
def test_shares_add_up_and_are_within_one_of_the_exact_share(size, weights):
    counts = shares(size, weights)

    total = sum(Fraction(weight) for weight in weights.values())
    assert sum(counts.values()) == size
    for name, weight in weights.items():
        assert abs(counts[name] - size * Fraction(weight) / total) < 1


def test_iteration_seed_and_split_change_the_sample():
    tasks = make_tasks(easy=200)
    first = ids(sample(tasks, train_tasks_rollout_size=50))

    assert ids(sample(tasks, train_tasks_rollout_size=50, iteration=2)) != first
    assert ids(sample(tasks, train_tasks_rollout_size=50, seed=1)) != first


def test_the_order_of_the_file_does_not_change_a_train_sample():
    tasks = make_tasks(easy=30, hard=30)

    assert sample(tasks, train_tasks_rollout_size=70) == sample(tasks[::-1], train_tasks_rollout_size=70)


PRINT_A_SAMPLE = """
import sys
sys.path.insert(0, {folder!r})
from test_sample import make_tasks, sample
print([(str(s.key), s.seed) for s in sample(make_tasks(easy=9, hard=9), train_tasks_rollout_size=12)])
"""


def test_another_process_with_another_hash_seed_samples_the_same(request):
    expected = [
        (str(spec.key), spec.seed) for spec in sample(make_tasks(easy=9, hard=9), train_tasks_rollout_size=12)
    ]
    script = PRINT_A_SAMPLE.format(folder=str(request.path.parent))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONHASHSEED": "12345"},
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == str(expected)


def test_seeds_do_not_change_between_versions():
    (spec,) = sample(make_tasks(easy=1), train_tasks_rollout_size=1)

    assert spec.seed == 2072664743, "a changed seed breaks the resume of every run that is under way"


@given(
    counts=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
    size=st.integers(-1, 60),
    group_size=st.integers(1, 3),
    sampler=st.sampled_from(["uniform", "ratio"]),
    split=st.sampled_from(["train", "test"]),
    iteration=st.integers(1, 1000),
    seed=st.integers(0, 2**40),
)
def test_keys_are_unique_counts_exact_and_samples_repeatable(
    counts, size, group_size, sampler, split, iteration, seed
):
    tasks = make_tasks(*counts)
    chosen = {
        "train_tasks_rollout_size": size,
        "test_tasks_rollout_size": size,
        "train_tasks_sampler": sampler,
        "test_tasks_repeat_times": group_size,
        "group_size": group_size,
        "seed": seed,
    }
    specs = sample(tasks, split=split, iteration=iteration, **chosen)

    draws = len(tasks) if size == -1 or (split == "test" and size > len(tasks)) else size
    assert len(specs) == draws * group_size
    assert len({spec.key for spec in specs}) == len(specs)
    assert all(0 <= spec.seed < 2**31 for spec in specs)
    assert specs == sample(tasks, split=split, iteration=iteration, **chosen)


def groups_of(specs):
    return {(spec.key.task_id, spec.key.group) for spec in specs}


@pytest.mark.parametrize("size", [3, 10, 25, -1])
def test_every_batch_goes_on_where_the_one_before_ended(size):
    tasks = make_tasks(easy=10)
    batches = [sample(tasks, batch=batch, train_tasks_rollout_size=size, group_size=2) for batch in range(4)]
    of_batch = 10 if size == -1 else size
    together = sample(tasks, train_tasks_rollout_size=4 * of_batch, group_size=2)
    assert [len(batch) for batch in batches] == [2 * of_batch] * 4
    assert {spec.key: spec.seed for batch in batches for spec in batch} == {
        spec.key: spec.seed for spec in together
    }


def test_every_batch_keeps_to_the_ratio_of_difficulties():
    words = {"train_tasks_rollout_size": 20, "train_tasks_sampler": "ratio", "difficulty_ratio": RATIO}
    tasks = make_tasks(easy=12, medium=12, hard=12)
    batches = [sample(tasks, batch=batch, **words) for batch in range(3)]
    for batch in batches:
        assert Counter(spec.task.difficulty for spec in batch) == {"easy": 10, "medium": 5, "hard": 5}
    assert len(set().union(*map(groups_of, batches))) == 60


RATIO = {"easy": 2, "medium": 1, "hard": 1}


def test_a_part_of_the_reserve_is_of_all_difficulties():
    tasks = make_tasks(easy=100, medium=100, hard=100)
    first = sample(tasks, batch=1, train_tasks_rollout_size=90)[:30]
    assert all(count >= 4 for count in Counter(spec.task.difficulty for spec in first).values())
    assert len({spec.task.difficulty for spec in first}) == 3
