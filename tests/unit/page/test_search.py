"""What is looked for finds what the store has, and is never a part of the question."""

from dataclasses import replace

import pytest

from rl_agent.page.search import places_of, read_query, search
from rl_agent.types import Status
from tests.unit.page.followed import count, found
from tests.unit.page.stores import attempts, record
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
    one = opened()
    assert count(one) == 7
    assert found(one, split="test") == ["task-3:0"]
    assert found(one, iteration="2") == ["task-4:0"] and found(one, version="3") == ["task-4:0"]
    assert found(one, status="failed") == ["task-1:0"] == found(one, failure="engineerror gone")
    assert found(one, reward_min="0.2", reward_max="0.6", order="reward, lowest") == ["task-2:0", "task-0:2"]
    assert found(one, difficulty="hard") == ["task-2:0"] == found(one, tokens_min="50")
    assert (
        found(one, turns_min="2")
        == ["task-2:0"]
        == found(one, text="cat SAT")
        == found(one, text='"sat on the"')
    )
    assert found(one, text='"on sat"') == [] and found(one, text="cat dog") == []
    assert found(one, task_id="task-0", order="reward, highest") == ["task-0:1", "task-0:2", "task-0:0"]
    assert search(one, read_query({}), 1).reward_mean == pytest.approx((0 + 1 + 0.5 + 0.25 + 1 + 1) / 6)
    assert len(list(places_of(one, read_query({"split": "train"})))) == 6


@pytest.mark.parametrize("text", ["'; DROP TABLE episode; --", '"', "%", "\0", "ü" * 500, "a " * 50])
def test_what_is_looked_for_is_never_a_part_of_the_question(paths, opened, text):
    record(paths, 1, make_trajectory(0))
    one = opened()
    for name in ("text", "failure", "task_id", "status", "env", "reward_min", "iteration", "order"):
        search(one, read_query({name: text}), 1)
    assert count(one) == 1
