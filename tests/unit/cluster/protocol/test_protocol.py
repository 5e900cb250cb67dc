"""Whom the master admits to the run, and whom it gives up."""

import pytest

from rl_agent.cluster.protocol.events import Polled, RecordChanged
from rl_agent.cluster.protocol.records import PhaseKey
from tests.unit.cluster.cluster_states import LEASE_S, MASTER, Run, record

ROLLOUT = PhaseKey(1, "rollout")


@pytest.fixture
def run():
    return Run(2, ranks=[1])


def test_a_node_that_answers_this_master_becomes_a_member():
    run = Run(2)
    run.see("m1", 1)
    assert run.state.peers["m1"].rank == 1 and run.state.missing_ranks == []


@pytest.mark.parametrize("answers", [None, "an earlier master"])
def test_a_record_that_a_dead_node_left_is_no_member(answers):
    run = Run(2)
    run.see("m1", 1, answers=answers)
    assert run.state.missing_ranks == [1]


@pytest.mark.parametrize(
    ("rank", "digest", "words"), [(1, "other", "compare"), *((n, "same", f"rank {n} ") for n in (0, 2, -1))]
)
def test_another_configuration_or_rank_than_is_awaited_is_refused(rank, digest, words):
    run = Run(2)
    run.see("m1", rank, config_digest=digest)
    assert words in run.state.refused["m1"] and run.state.missing_ranks == [1]


def test_a_second_node_of_a_rank_is_refused_by_name_once_the_first_lives(run):
    run.see("twin", 1)
    assert "twin" not in run.state.refused  # m1 may be dead: nobody knows yet
    run.see("m1", 1)
    assert "host-m1" in run.state.refused["twin"] and run.status("m1") == "alive"


@pytest.mark.parametrize("fate", ["left", "dead"])
def test_a_second_node_of_a_rank_replaces_the_first_once_that_is_gone(run, fate):
    if fate == "left":
        run.see("m1", 1, state="left", reason="preempted")
    run.see("twin", 1)
    if fate == "dead":
        run.look_for(LEASE_S + 1)
    assert (run.status("m1"), run.status("twin")) == (fate, "alive")
    assert run.state.regular == {MASTER: 0, "twin": 1}


def test_joiners_get_ranks_that_nobody_had(run):
    run.see("j1", None)
    run.see("j1", None, state="left")
    run.see("j2", None)
    assert [run.state.peers[name].rank for name in ("j1", "j2")] == [2, 3]


def test_a_silent_node_is_dead_after_the_lease_and_named_with_its_phase():
    run = Run(3, ranks=[1, 2])
    run.look_for(LEASE_S, beating=[("m2", 2)])
    assert run.status("m1") == "alive"
    run.look_for(1, beating=[("m2", 2)])
    assert (run.status("m1"), run.status("m2")) == ("dead", "alive")
    assert any("rank 1 (host-m1)" in line and "testing" in line for line in run.lines())


def test_a_dead_node_that_wakes_up_stays_dead(run):
    run.look_for(LEASE_S + 1)
    run.see("m1", 1, flags={ROLLOUT: "done"})
    assert run.status("m1") == "dead" and not run.state.peers["m1"].flags


def test_a_stopped_master_does_not_take_its_sleep_for_others_silence(run):
    run.now += 10 * LEASE_S
    run.do(Polled())
    assert run.status("m1") == "alive"


def test_an_older_record_than_the_last_one_changes_nothing(run):
    run.see("m1", 1, doing="new")
    old = record("m1", 1, beat=1, doing="old", state="left")
    run.do(RecordChanged(old))
    assert run.state.peers["m1"].doing == "new" and run.status("m1") == "alive"
