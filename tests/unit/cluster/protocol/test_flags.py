"""Phases are done by what the master decided, over all attempts of a run."""

import json

from rl_agent.cluster.protocol.flags import finished_phases, flag_record


def decide(folder, iteration, phase, outcome, *, attempt=1, run="run"):
    path = folder / run / str(attempt) / str(iteration) / phase / "decision.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"outcome": outcome, "lost": [], "words": []}))


def test_progress_is_the_union_over_attempts_of_any_number_of_nodes(tmp_path):
    decide(tmp_path, 1, "rollout", "done", attempt=1)
    decide(tmp_path, 1, "update", "skipped", attempt=2)
    assert finished_phases(tmp_path, "run", 2) == {1: {"rollout", "update"}}
    assert finished_phases(tmp_path, "other", 1) == {}


def test_a_flag_without_a_decision_ends_no_phase(tmp_path):
    folder = tmp_path / "run" / "1" / "1" / "rollout"
    folder.mkdir(parents=True)
    (folder / "rank-0.json").write_text(json.dumps(flag_record(0, "done")))
    assert finished_phases(tmp_path, "run", 1) == {}


def test_a_phase_that_lost_a_node_is_not_done(tmp_path):
    decide(tmp_path, 1, "rollout", "done")
    decide(tmp_path, 1, "train-3", "lost")
    assert finished_phases(tmp_path, "run", 1) == {1: {"rollout"}}


def test_only_a_failed_last_update_is_repeated_by_the_next_attempt(tmp_path):
    decide(tmp_path, 1, "update", "failed")
    decide(tmp_path, 2, "rollout", "done")
    decide(tmp_path, 2, "update", "failed")

    assert finished_phases(tmp_path, "run", 1)[2] == {"rollout", "update"}
    assert finished_phases(tmp_path, "run", 2) == {1: {"update"}, 2: {"rollout"}}
