"""Iteration and phases that come next, as tables."""

import pytest

from rl_agent.cluster.protocol.schedule import (
    FinishedIterations,
    add_shards,
    finished_on_disk,
    first_iteration,
    is_evaluated,
    needed_iteration,
    next_work,
    oldest_version,
    phases_of,
)
from rl_agent.cluster.protocol.schedule import PendingPhases as Work
from rl_agent.paths import RunPaths
from tests.support.rollout_setup import command_of


def command(rl_phase="both", *, interval=None, split=None, limit=None, final=False):
    of_rollouts = {"eval_interval": interval, "rollout_split": split}
    return command_of(rl_phase, **of_rollouts, max_iterations=limit, final_eval=final)


@pytest.mark.parametrize(
    ("interval", "evaluated"), [(1, [1, 2, 3, 4, 5, 6, 7]), (2, [1, 3, 5, 7]), (6, [1, 7]), (100, [1])]
)
def test_evaluation_is_due_where_the_iteration_modulo_the_interval_is_one(interval, evaluated):
    assert [iteration for iteration in range(1, 8) if is_evaluated(iteration, interval)] == evaluated


BOTH = command(interval=2)
NEXT = {
    "nothing done": (BOTH, 1, {}, Work(1, ("rollout", "evaluate", "update"))),
    "rollout done": (BOTH, 1, {1: {"rollout"}}, Work(1, ("evaluate", "update"))),
    "update left": (BOTH, 1, {1: {"rollout", "evaluate"}}, Work(1, ("update",))),
    "iteration done": (BOTH, 1, {1: {"rollout", "evaluate", "update"}}, Work(2, ("rollout", "update"))),
    "second not evaluated": (BOTH, 2, {2: {"rollout"}}, Work(2, ("update",))),
    "evaluate out of turn counts for nothing": (BOTH, 2, {2: {"evaluate"}}, Work(2, ("rollout", "update"))),
    "starts at its first": (BOTH, 5, {1: {"rollout"}}, Work(5, ("rollout", "evaluate", "update"))),
    "limit reached": (command(interval=1, limit=1), 4, {4: {"rollout", "evaluate", "update"}}, None),
    "limit counts from the first": (
        command("update", limit=2), 4, {4: {"update"}}, Work(5, ("update",)),
    ),
    "last model not evaluated": (
        command(interval=2, limit=1, final=True), 2, {2: {"rollout", "update"}}, Work(3, ("evaluate",)),
    ),
    "last model evaluated": (
        command(interval=2, limit=1, final=True), 2, {2: {"rollout", "update"}, 3: {"evaluate"}}, None,
    ),
    "more after the last evaluation": (
        command(interval=2, limit=2, final=True), 2, {2: {"rollout", "update"}, 3: {"evaluate"}},
        Work(3, ("rollout", "update")),
    ),
    "train only": (command("rollout", split="train-only"), 1, {1: {"rollout"}}, Work(2, ("rollout",))),
    "eval only": (command("rollout", split="eval-only"), 1, {1: {"rollout"}}, Work(1, ("evaluate",))),
}  # fmt: skip


@pytest.mark.parametrize(("words", "first", "finished", "expected"), NEXT.values(), ids=NEXT)
def test_next_work(words, first, finished, expected):
    assert next_work(words, first, finished) == expected


FIRST = {
    "empty": (command(interval=1), FinishedIterations(), 1),
    "after the last of anything": (command(interval=1), FinishedIterations(train=3, test=5, update=2), 6),
    "train counts train shards": (command("rollout", split="train-only"), FinishedIterations(3, 5, 9), 4),
    "eval counts test shards": (command("rollout", split="eval-only"), FinishedIterations(3, 5, 9), 6),
    "update of the newest rollout": (command("update"), FinishedIterations(train=3, update=1), 3),
    "update after an update": (command("update"), FinishedIterations(train=3, update=3), 4),
    "update of nothing": (command("update"), FinishedIterations(), 1),
}


@pytest.mark.parametrize(("words", "numbers", "expected"), FIRST.values(), ids=FIRST)
def test_first_iteration_of_a_fresh_start(words, numbers, expected):
    assert first_iteration(words, numbers) == expected


def test_finished_shards_and_prepared_updates_are_read_from_the_disk(tmp_path):
    paths = RunPaths(tmp_path)
    for path in (paths.shard("train", 2), paths.checkpoint_shard("train", 3), paths.shard("test", 1)):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    paths.update_dir(2).mkdir(parents=True)

    assert finished_on_disk(paths) == FinishedIterations(train=2, test=1, update=2)
    assert add_shards({}, paths) == {2: {"rollout"}, 1: {"evaluate"}}


def test_a_streaming_trainer_gets_no_rollout_before_its_evaluation():
    assert phases_of(command(interval=2), 3, is_streaming=True) == ("evaluate", "rollout", "update")
    assert phases_of(command(interval=2), 4, is_streaming=True) == ("rollout", "update")


@pytest.mark.parametrize(
    ("phase", "needed", "needed_if_stale"), [("evaluate", 4, 4), ("rollout", 4, 2), ("update", 5, 3)]
)
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_phase_waits_for_no_newer_version_than_needed(phase, needed, needed_if_stale, staleness):
    expected = needed_if_stale if staleness else needed
    assert needed_iteration(phase, 5, staleness=staleness, last=None) == expected
    assert needed_iteration("update", 5, staleness=staleness, last=5) == 5


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("published", [1, 4, 5])
def test_no_token_of_a_rollout_is_too_old_when_its_turn_comes(staleness, published):
    """Versions are as many as iterations here: iteration 6 is trained on from version 5."""
    oldest = oldest_version("rollout", 6, published, published, staleness=staleness)
    assert oldest == max(5 - staleness, 0)
    assert oldest_version("evaluate", 6, 5, 5, staleness=staleness) == 5
