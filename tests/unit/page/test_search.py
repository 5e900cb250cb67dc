"""A search finds what the store has, and its text is never a part of the query."""

from dataclasses import replace

import pytest

from rl_agent.page.search import Flips, flips, places_of, read_query, search, worst_tasks
from rl_agent.types import Compaction, SeenContext, Status
from tests.unit.page.stores import attempts, count, names_of, record
from tests.unit.rollout.trajectories_made import make_step, make_trajectory


def test_every_episode_of_the_store_is_found_by_what_it_is(paths, opened):
    long = make_step("The CAT sat on the mat. " * 20)
    record(
        paths,
        1,
        *attempts(0, [0.0, 1.0, 0.5]),
        make_trajectory(1, status=Status.FAILED, steps=()),
        make_trajectory(2, reward=0.25, difficulty="hard", steps=(long, make_step("13"))),
    )
    record(paths, 1, make_trajectory(3, split="test"), split="test")
    record(paths, 2, replace(make_trajectory(4, iteration=2), weight_version_max=3), grows=True)
    index = opened()
    assert count(index) == 7
    assert names_of(index, split="test") == ["task-3:0"]
    assert names_of(index, iteration="2") == ["task-4:0"] and names_of(index, version="3") == ["task-4:0"]
    assert names_of(index, status="failed") == ["task-1:0"] == names_of(index, failure="engineerror gone")
    between = names_of(index, reward_min="0.2", reward_max="0.6", order="reward, lowest")
    assert between == ["task-2:0", "task-0:2"]
    assert names_of(index, difficulty="hard") == ["task-2:0"] == names_of(index, tokens_min="50")
    for fields in ({"text": "cat SAT"}, {"text": '"sat on the"'}):
        assert names_of(index, **fields) == ["task-2:0"]
    assert names_of(index, text='"on sat"') == [] and names_of(index, text="cat dog") == []
    assert names_of(index, task_id="task-0", order="reward, highest") == ["task-0:1", "task-0:2", "task-0:0"]
    assert search(index, read_query({}), 1).reward_mean == pytest.approx((0 + 1 + 0.5 + 0.25 + 1 + 1) / 6)
    assert len(list(places_of(index, read_query({"split": "train"})))) == 6


@pytest.mark.parametrize("text", ["'; DROP TABLE episode; --", '"', "%", "\0", "ü" * 500, "a " * 50])
def test_search_words_are_never_a_part_of_the_query(paths, opened, text):
    record(paths, 1, make_trajectory(0))
    index = opened()
    for name in ("text", "failure", "task_id", "status", "env", "reward_min", "iteration", "order"):
        search(index, read_query({name: text}), 1)
    assert count(index) == 1


def test_all_that_an_episode_says_is_found_however_long_it_is(paths, opened):
    filler = "word " * 3000
    call = '{"name": "open_drawer", "arguments": {"which": "topmost"}}'
    steps = [make_step(f"{filler} middle{n} {filler}", observation=f"{filler} saw{n}") for n in range(5)]
    summary = Compaction(1, (1,), (), make_step("summed up").generation)
    steps[2] = replace(steps[2], action=call, seen=SeenContext(compactions=(summary,)))
    trajectory = make_trajectory(0, steps=tuple(steps))
    detail = {"verdict": "yes", "criteria": [{"criterion": "politeness", "reason": "greets"}]}
    task = replace(trajectory.task, extra={"site": "shopping"})
    trajectory = replace(trajectory, reward_detail=detail, task=task, last_observation="finally")
    record(paths, 1, trajectory, make_trajectory(1))
    index = opened()
    of_steps = ("middle3", "saw2", "open_drawer topmost", '"topmost"')
    for words in (*of_steps, "summed", "greets", "shopping", "finally"):
        assert names_of(index, text=words) == ["task-0:0"], words
    assert names_of(index, text="topmost middle9") == []


def test_tasks_are_ordered_by_their_success_in_recent_iterations(paths, opened):
    record(paths, 1, *attempts(0, [0.0, 0.0]), *attempts(1, [0.0, 0.8]))
    record(paths, 11, *attempts(1, [0.7, 0.8]), *attempts(2, [0.9, 0.9]), *attempts(3, [0.0, 0.7]))
    record(paths, 12, make_trajectory(4, status=Status.FAILED, steps=()), *attempts(3, [0.0, 0.7]))
    for n in range(2, 11):
        record(paths, n, make_trajectory(9, iteration=n))
    rows = worst_tasks(opened(), threshold=0.8)
    assert [(task, episodes, success) for task, _, episodes, success, _ in rows] == [
        ("task-3", 4, 0.0), ("task-1", 2, 0.5), ("task-2", 2, 1.0), ("task-9", 8, 1.0)
    ]  # fmt: skip


def test_tasks_flip_where_the_last_two_evaluations_differ(paths, opened):
    of_tasks = {1: [0.0, 1.0, 0.0, 1.0], 2: [1.0, 0.0, 0.0, 1.0], 5: [0.0, 1.0, 0.0, 1.0]}
    for iteration, rewards in of_tasks.items():
        siblings = (
            sibling for n, reward in enumerate(rewards) for sibling in attempts(n, [reward], split="test")
        )
        record(paths, iteration, *siblings, split="test")
    record(paths, 6, *attempts(0, [1.0]))
    assert flips(opened(), 1.0) == Flips(
        (2, 5), 1, 1, [("task-0", "3+5=", 1.0, 0.0), ("task-1", "3+5=", 0.0, 1.0)]
    )


def test_one_evaluation_alone_has_no_flips(paths, opened):
    record(paths, 1, *attempts(0, [1.0], split="test"), split="test")
    assert flips(opened(), 1.0) is None
