"""What the master decides: membership, orders, decisions."""

import pytest

from rl_agent.cluster.protocol.events import (
    DecisionAwaited,
    OrderRegrouped,
    PhaseDecided,
    PhaseOrdered,
    Polled,
    RecordChanged,
    WriteDecision,
)
from rl_agent.cluster.protocol.records import PhaseKey
from tests.unit.cluster.cluster_states import LEASE_S, MASTER, Run, record

ROLLOUT, UPDATE = PhaseKey(1, "rollout"), PhaseKey(1, "update")
TRAIN = PhaseKey(1, "train-1")


def outcome(run, key):
    decision = run.state.decisions.get(key)
    return decision.outcome if decision else None


# --- who belongs to the run ---
def test_a_node_that_answers_this_master_becomes_a_member():
    run = Run(2)
    run.see("m1", 1)
    assert run.state.peers["m1"].rank == 1 and run.state.missing_ranks == []


@pytest.mark.parametrize("answers", [None, "an earlier master"])
def test_a_record_that_a_dead_node_left_is_no_member(answers):
    run = Run(2)
    run.see("m1", 1, answers=answers)
    assert run.state.missing_ranks == [1]


def test_a_node_with_another_configuration_is_refused_and_told_to_compare():
    run = Run(2)
    run.see("m1", 1, config_digest="other")
    assert "compare" in run.state.refused["m1"] and run.state.missing_ranks == [1]


@pytest.mark.parametrize("rank", [0, 2, -1])
def test_a_rank_that_the_run_does_not_wait_for_is_refused(rank):
    run = Run(2)
    run.see("m1", rank)
    assert f"rank {rank} " in run.state.refused["m1"]


def test_a_second_node_of_a_rank_is_refused_once_the_first_shows_life_and_the_line_names_it():
    run = Run(2, ranks=[1])
    run.see("twin", 1)
    assert "twin" not in run.state.refused  # m1 may be dead: nobody knows yet
    run.see("m1", 1)
    assert "host-m1" in run.state.refused["twin"] and run.status("m1") == "alive"


def test_a_second_node_of_a_rank_replaces_the_first_once_that_is_dead():
    run = Run(2, ranks=[1])
    run.see("twin", 1)
    run.look_for(LEASE_S + 1)
    assert run.status("m1") == "dead" and run.status("twin") == "alive"
    assert run.state.regular == {MASTER: 0, "twin": 1}


def test_a_replacement_is_admitted_at_once_where_the_first_has_left():
    run = Run(2, ranks=[1])
    run.see("m1", 1, state="left", reason="preempted")
    run.see("next", 1)
    assert run.state.regular == {MASTER: 0, "next": 1}


def test_joiners_get_ranks_that_nobody_had():
    run = Run(2, ranks=[1])
    run.see("j1", None)
    run.see("j1", None, state="left")
    run.see("j2", None)
    assert [run.state.peers[name].rank for name in ("j1", "j2")] == [2, 3]


def test_a_silent_node_is_dead_after_the_lease_and_named_with_what_it_was_doing():
    run = Run(3, ranks=[1, 2])
    run.look_for(LEASE_S, beating=[("m2", 2)])
    assert run.status("m1") == "alive"
    run.look_for(1, beating=[("m2", 2)])
    assert (run.status("m1"), run.status("m2")) == ("dead", "alive")
    assert any("rank 1 (host-m1)" in line and "testing" in line for line in run.lines())


def test_a_dead_node_that_wakes_up_stays_dead():
    run = Run(2, ranks=[1])
    run.look_for(LEASE_S + 1)
    run.see("m1", 1, flags={ROLLOUT: "done"})
    assert run.status("m1") == "dead" and not run.state.peers["m1"].flags


def test_a_master_that_was_stopped_does_not_take_its_own_sleep_for_the_silence_of_others():
    run = Run(2, ranks=[1])
    run.now += 10 * LEASE_S
    run.do(Polled())
    assert run.status("m1") == "alive"


def test_an_older_record_than_the_last_one_changes_nothing():
    run = Run(2, ranks=[1])
    run.see("m1", 1, doing="new")
    old = record("m1", 1, beat=1, doing="old", state="left")
    run.do(RecordChanged(old))
    assert run.state.peers["m1"].doing == "new" and run.status("m1") == "alive"


# --- what is done ---
def test_a_phase_is_decided_when_every_participant_has_finished_as_the_master_said():
    run = Run(2, ranks=[1])
    run.do(PhaseOrdered(UPDATE))
    run.see(MASTER, 0, flags={UPDATE: "skipped"})
    assert outcome(run, UPDATE) is None
    run.see("m1", 1, flags={UPDATE: "done"})
    assert outcome(run, UPDATE) == "skipped"


def test_a_phase_fails_if_one_has_failed():
    run = Run(2, ranks=[1])
    run.do(PhaseOrdered(UPDATE))
    run.see(MASTER, 0, flags={UPDATE: "done"})
    run.see("m1", 1, flags={UPDATE: "failed"})
    assert outcome(run, UPDATE) == "failed"


def test_a_decision_is_written_once_and_what_comes_later_does_not_change_it():
    run = Run(2, ranks=[1])
    run.do(PhaseOrdered(UPDATE))
    run.see(MASTER, 0, flags={UPDATE: "done"})
    run.see("m1", 1, flags={UPDATE: "done"})
    run.see("m1", 1, flags={UPDATE: "failed"})
    run.do(DecisionAwaited(UPDATE))
    assert [c.key for c in run.commands if isinstance(c, WriteDecision)] == [UPDATE]
    with pytest.raises(ValueError, match="decided already: done"):
        run.do(PhaseDecided(UPDATE, "failed"))
    with pytest.raises(ValueError, match="decided already"):
        run.do(PhaseOrdered(UPDATE))


def test_a_rollout_goes_on_without_a_node_that_died_and_says_which():
    run = Run(3, ranks=[1, 2])
    run.do(PhaseOrdered(ROLLOUT))
    run.see(MASTER, 0, flags={ROLLOUT: "done"})
    run.see("m2", 2, flags={ROLLOUT: "done"})
    run.look_for(LEASE_S + 1, beating=[("m2", 2)])
    decision = run.state.decisions[ROLLOUT]
    assert decision.outcome == "done" and "rank 1 (host-m1)" in decision.lost[0]


def test_a_training_is_lost_at_once_with_a_participant_also_if_nobody_has_finished():
    run = Run(2, ranks=[1])
    run.do(PhaseOrdered(UPDATE))
    run.do(DecisionAwaited(TRAIN))
    run.see("m1", 1, state="left", reason="preempted")
    decision = run.state.decisions[TRAIN]
    assert decision.outcome == "lost" and decision.lost == ("rank 1 (host-m1): preempted",)


def test_a_training_is_lost_rather_than_failed_where_the_others_failed_because_of_it():
    run = Run(3, ranks=[1, 2])
    run.do(PhaseOrdered(UPDATE))
    run.see(MASTER, 0, flags={TRAIN: "failed"})
    run.see("m2", 2, flags={TRAIN: "failed"})
    assert outcome(run, TRAIN) is None  # m1 may live
    run.look_for(LEASE_S + 1, beating=[("m2", 2)])
    assert outcome(run, TRAIN) == "lost"


def test_a_node_that_dies_after_it_has_finished_does_not_spoil_a_training():
    run = Run(2, ranks=[1])
    run.do(PhaseOrdered(UPDATE))
    run.see("m1", 1, flags={TRAIN: "done"})
    run.look_for(LEASE_S + 1)
    run.see(MASTER, 0, flags={TRAIN: "done"})
    assert outcome(run, TRAIN) == "done"


def test_an_undecided_phase_is_ordered_again_with_those_who_are_left_and_old_flags_do_not_count():
    run = Run(3, ranks=[1, 2])
    run.do(PhaseOrdered(UPDATE))
    run.see("m2", 2, flags={UPDATE: "done"}, seq=1)
    run.see("m1", 1, state="left")
    run.do(PhaseOrdered(UPDATE))
    assert run.state.order.ranks == (0, 2) and run.state.order.seq == 2
    run.see(MASTER, 0, flags={UPDATE: "done"})
    assert outcome(run, UPDATE) is None
    run.see("m2", 2, flags={UPDATE: "done"})
    assert outcome(run, UPDATE) == "done"


def test_phases_within_an_order_wait_for_its_participants_and_for_no_later_node():
    run = Run(3, ranks=[1])
    run.do(PhaseOrdered(UPDATE))
    run.see("m2", 2)
    run.see("j", None)
    run.do(DecisionAwaited(TRAIN))
    run.see(MASTER, 0, flags={TRAIN: "done"})
    run.see("m1", 1, flags={TRAIN: "done"})
    assert outcome(run, TRAIN) == "done"


def test_regrouping_leaves_out_who_is_gone_before_the_training_begins():
    run = Run(3, ranks=[1, 2])
    run.do(PhaseOrdered(UPDATE))
    run.see("m1", 1, state="left")
    run.do(OrderRegrouped())
    run.do(DecisionAwaited(TRAIN))
    assert run.state.order.ranks == (0, 2) and outcome(run, TRAIN) is None


def test_nobody_waits_for_a_joiner():
    run = Run(1)
    run.see("j", None)
    run.do(PhaseOrdered(ROLLOUT))
    run.see(MASTER, 0, flags={ROLLOUT: "done"})
    assert outcome(run, ROLLOUT) == "done"


def test_what_the_master_has_to_say_comes_with_the_decision():
    run = Run(1)
    run.do(PhaseOrdered(UPDATE))
    run.do(PhaseDecided(PhaseKey(1, "prepared-1"), "done", ("0,1", "10.0.0.1:29500")))
    assert run.state.decisions[PhaseKey(1, "prepared-1")].words == ("0,1", "10.0.0.1:29500")
