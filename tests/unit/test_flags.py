"""Phase flags: written whole, never deleted, waited for to a deadline."""

import json

import pytest

from rl_agent.cluster.flags import (
    Flag,
    FlagPlace,
    create_flag,
    finished_phases,
    present_ranks,
    wait_for_ranks,
)
from rl_agent.errors import DeadlineError


def place(folder, attempt=1, iteration=1, phase="rollout"):
    return FlagPlace(folder / "run" / str(attempt), iteration, phase)


def test_a_flag_lies_where_the_design_says_and_holds_its_outcome(tmp_path):
    path = create_flag(place(tmp_path, 2, 7, "update"), Flag(0, "skipped", 12.5))
    assert path == tmp_path / "run" / "2" / "7" / "update" / "rank-0.json"
    assert json.loads(path.read_text()) == {"rank": 0, "outcome": "skipped", "finished_at": 12.5}


def test_a_half_written_flag_is_not_seen(tmp_path):
    here = place(tmp_path)
    here.folder.mkdir(parents=True)
    (here.folder / ".rank-0.json.99.tmp").write_text("{")
    assert present_ranks(here) == set()


def test_waiting_ends_when_the_last_rank_arrives(tmp_path):
    here = place(tmp_path)
    create_flag(here, Flag(0, "done", 0.0))
    waits = []

    def sleep(_):
        waits.append(1)
        create_flag(here, Flag(1, "done", 0.0))

    wait_for_ranks(here, 2, timeout_s=5, clock=lambda: 0.0, sleep=sleep)
    assert waits == [1]


def test_the_deadline_names_the_ranks_that_are_missing(tmp_path):
    now = iter([0.0, 1.0, 6.0])
    create_flag(place(tmp_path), Flag(1, "done", 0.0))
    with pytest.raises(DeadlineError, match="phase rollout: waited 5 s for rank 0, rank 2"):
        wait_for_ranks(place(tmp_path), 3, timeout_s=5, clock=lambda: next(now), sleep=lambda _: None)


def test_progress_is_the_union_over_attempts_and_needs_every_rank(tmp_path):
    create_flag(place(tmp_path, 1, 1, "rollout"), Flag(0, "done", 0.0))
    create_flag(place(tmp_path, 2, 1, "rollout"), Flag(1, "done", 0.0))
    create_flag(place(tmp_path, 2, 1, "update"), Flag(1, "done", 0.0))
    assert finished_phases(tmp_path, "run", 2, 1) == {1: {"rollout"}}
    assert finished_phases(tmp_path, "run", 1, 1) == {1: {"rollout", "update"}}
    assert finished_phases(tmp_path, "other", 1, 1) == {}


def test_a_failed_last_update_is_done_again_by_the_next_attempt_and_an_earlier_one_is_not(tmp_path):
    def write(iteration, phase, outcome):
        create_flag(FlagPlace(tmp_path / "run" / "1", iteration, phase), Flag(0, outcome, 0.0))

    write(1, "update", "failed")
    write(2, "rollout", "done")
    write(2, "update", "failed")

    assert finished_phases(tmp_path, "run", 1, 1)[2] == {"rollout", "update"}
    assert finished_phases(tmp_path, "run", 1, 2) == {1: {"update"}, 2: {"rollout"}}
