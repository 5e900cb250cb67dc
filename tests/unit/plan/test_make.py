"""A start becomes a plan: a fresh run, the next attempt of one, or a worker's part of its master's."""

import os

import pytest

from rl_agent.errors import ConfigError, NothingLeft
from rl_agent.plan import make
from rl_agent.plan.runs import latest_plan
from rl_agent.rollout.sample import Assignment, sample_of


def test_a_fresh_run_begins_behind_what_is_finished_on_the_disk(started):
    first, second = started(), started()
    assert (first.plan.attempt, first.plan.first_iteration) == (1, 1)
    assert first.plan.run_id != second.plan.run_id and first.work.phases
    shard = first.plan.paths.shard("train", 4)
    shard.parent.mkdir(parents=True)
    shard.touch()
    assert started().plan.first_iteration > 1
    assert "a note" in first.notes


def test_a_resume_is_the_next_attempt_of_the_last_run_and_of_nothing_else(started):
    with pytest.raises(ConfigError, match="--resume: no run was started"):
        started("--resume")
    first = started("--max-iterations", "3")
    make.start(first, None)
    again = started("--resume", "--max-iterations", "3").plan
    assert (again.run_id, again.attempt) == (first.plan.run_id, 2)
    with pytest.raises(ConfigError, match=r"the last run in .* was --rl-phase both"):
        started("--resume", phase="update")


def test_a_run_that_has_done_all_its_iterations_has_nothing_left(started, monkeypatch):
    make.start(started("--max-iterations", "1"), None)
    monkeypatch.setattr(make, "_work", lambda plan: None)
    with pytest.raises(NothingLeft, match="raise --max-iterations"):
        started("--resume", "--max-iterations", "1")
    assert started("--resume", "--max-iterations", "1", "--dry-run").work is None


def test_a_start_writes_its_plan_and_claims_the_log_path_for_its_driver(started):
    prepared = started()
    assert not prepared.plan.paths.run_dir("latest").exists(), "prepare only reads"
    path = make.start(prepared, os.getpid())
    assert path.name == "plan.json" and latest_plan(prepared.plan.paths) == prepared.plan


def prompts(plan) -> set[str]:
    sample = sample_of(Assignment(plan, "train", 1, resume=False))
    return {task.prompt for task in (spec.task for spec in sample.specs)}


def test_a_run_keeps_the_tasks_that_it_began_with_and_a_new_run_does_not(started, tmp_path, monkeypatch):
    train = tmp_path / "tasks" / "train.jsonl"
    first = started("--max-iterations", "3")
    make.start(first, None)
    assert prompts(first.plan) == {"old"}
    train.write_text(train.read_text().replace("old", "new"))
    assert prompts(first.plan) == {"old"}

    resumed = started("--resume", "--max-iterations", "3")
    make.start(resumed, None)
    assert prompts(resumed.plan) == {"old"}
    (note,) = (note for note in resumed.notes if "train.jsonl" in note)
    assert note.startswith(f"--resume: {train} is not what the run began with") and "without --resume" in note
    new = started("--max-iterations", "3")
    make.start(new, None)
    assert prompts(new.plan) == {"new"}

    monkeypatch.setattr(make, "wait_for_run", lambda *_: first.plan)
    joined = started("--join", phase="rollout")
    make.start(joined, None)
    assert prompts(joined.plan) == {"old"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--eval-interval", "3"), "rank 1 has --eval-interval 3, the master has 2; use the same"),
        (("--rank-weights", "1,2"), "rank 1 has --rank-weights 1,2, the master has 1,1"),
        (("rollout.group_size=7",), "rollout.group_size"),
    ],
)
def test_a_worker_that_differs_from_its_master_is_refused_by_the_flag(started, monkeypatch, words, named):
    two = ("--num-nodes", "2", "--rank-weights", "1,1")
    masters = started(*two, "--master").plan
    monkeypatch.setattr(make, "wait_for_run", lambda *_: masters)
    other = two[:2] if "--rank-weights" in words else two
    with pytest.raises(ConfigError, match=named):
        make.start(started(*other, "--worker", "1", *words), None)
    part = started(*two, "--worker", "1")
    assert make.start(part, None).name == "plan-1-rank-1.json"
