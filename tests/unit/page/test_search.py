"""What is looked for finds what the store has, and is never a part of the question."""

import time
from dataclasses import replace

import pytest

from rl_agent.page import index as index_module
from rl_agent.page.index import EpisodeIndex
from rl_agent.page.search import places_of, read_query, search
from rl_agent.paths import RunPaths
from rl_agent.types import Status
from tests.unit.page.stores import attempts, record
from tests.unit.rollout.trajectories_made import make_step, make_trajectory


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path)


@pytest.fixture
def opened(paths, monkeypatch):
    """Return a function that makes an index of the log path and brings it up to date."""
    monkeypatch.setattr(index_module, "LOOK_EVERY_S", 0.02)
    made = []

    def make() -> EpisodeIndex:
        made.append(EpisodeIndex(paths))
        follow(made[-1])
        return made[-1]

    yield make
    for one in made:
        one.close()


def follow(one: EpisodeIndex, expected: int | None = None) -> None:
    """Wait until it is up to date, and has so many episodes."""
    deadline = time.monotonic() + 30
    one.wake()
    while not one.progress.is_up_to_date or (expected is not None and expected != count(one)):
        assert time.monotonic() < deadline, one.progress
        time.sleep(0.01)


def count(one: EpisodeIndex) -> int:
    return one.ask("SELECT count(*) FROM episode", [])[0][0]


def found(one: EpisodeIndex, **fields: str) -> list[str]:
    rows = search(one, read_query(fields), 1).rows
    return [f"{row['task_id']}:{row['attempt']}" for row in rows]


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
