"""A phase is over when the flags of its participants decide it, and how they decide."""

import pytest

from rl_agent.cluster.protocol.events import (
    DecisionAwaited,
    OrderRegrouped,
    PhaseDecided,
    PhaseOrdered,
    WriteDecision,
)
from rl_agent.cluster.protocol.records import PhaseKey
from tests.unit.cluster.cluster_states import LEASE_S, MASTER, Run

ROLLOUT, UPDATE = PhaseKey(1, "rollout"), PhaseKey(1, "update")
TRAIN = PhaseKey(1, "train-1")


def outcome(run, key):
    decision = run.state.decisions.get(key)
    return decision.outcome if decision else None


def ordered(num_nodes, key=UPDATE):
    """A run of these nodes, whose master has ordered a phase."""
    run = Run(num_nodes, ranks=range(1, num_nodes))
    run.do(PhaseOrdered(key))
    return run


@pytest.mark.parametrize(
    ("masters", "others", "decided"), [("skipped", "done", "skipped"), ("done", "failed", "failed")]
)
def test_a_phase_is_decided_once_every_ordered_participant_has_ended_it(masters, others, decided):
    run = ordered(2)
    run.see(MASTER, 0, flags={UPDATE: masters})
    assert outcome(run, UPDATE) is None
    run.see("m1", 1, flags={UPDATE: others})
    assert outcome(run, UPDATE) == decided


def test_a_decision_is_written_once_and_later_flags_do_not_change_it():
    run = ordered(2)
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
    run = ordered(3, ROLLOUT)
    run.see(MASTER, 0, flags={ROLLOUT: "done"})
    run.see("m2", 2, flags={ROLLOUT: "done"})
    run.look_for(LEASE_S + 1, beating=[("m2", 2)])
    decision = run.state.decisions[ROLLOUT]
    assert decision.outcome == "done" and "rank 1 (host-m1)" in decision.lost[0]


def test_a_training_is_lost_with_a_participant_even_if_none_has_finished():
    run = ordered(2)
    run.do(DecisionAwaited(TRAIN))
    run.see("m1", 1, state="left", reason="preempted")
    decision = run.state.decisions[TRAIN]
    assert decision.outcome == "lost" and decision.lost == ("rank 1 (host-m1): preempted",)


def test_a_training_is_lost_not_failed_if_others_failed_because_of_it():
    run = ordered(3)
    run.see(MASTER, 0, flags={TRAIN: "failed"})
    run.see("m2", 2, flags={TRAIN: "failed"})
    assert outcome(run, TRAIN) is None  # m1 may live
    run.look_for(LEASE_S + 1, beating=[("m2", 2)])
    assert outcome(run, TRAIN) == "lost"


def test_a_node_that_dies_after_it_has_finished_does_not_spoil_a_training():
    run = ordered(2)
    run.see("m1", 1, flags={TRAIN: "done"})
    run.look_for(LEASE_S + 1)
    run.see(MASTER, 0, flags={TRAIN: "done"})
    assert outcome(run, TRAIN) == "done"


def test_an_undecided_phase_is_ordered_again_and_old_flags_do_not_count():
    run = ordered(3)
    run.see("m2", 2, flags={UPDATE: "done"}, seq=1)
    run.see("m1", 1, state="left")
    run.do(PhaseOrdered(UPDATE))
    assert run.state.order.ranks == (0, 2) and run.state.order.seq == 2
    run.see(MASTER, 0, flags={UPDATE: "done"})
    assert outcome(run, UPDATE) is None
    run.see("m2", 2, flags={UPDATE: "done"})
    assert outcome(run, UPDATE) == "done"


def test_phases_of_an_order_wait_for_its_participants_and_no_later_node():
    run = Run(3, ranks=[1])
    run.do(PhaseOrdered(UPDATE))
    run.see("m2", 2)
    run.see("j", None)
    run.do(DecisionAwaited(TRAIN))
    run.see(MASTER, 0, flags={TRAIN: "done"})
    run.see("m1", 1, flags={TRAIN: "done"})
    assert outcome(run, TRAIN) == "done"


def test_regrouping_leaves_out_nodes_gone_before_the_training_begins():
    run = ordered(3)
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


def test_the_masters_words_come_with_the_decision():
    run = ordered(1)
    run.do(PhaseDecided(PhaseKey(1, "prepared-1"), "done", ("0,1", "10.0.0.1:29500")))
    assert run.state.decisions[PhaseKey(1, "prepared-1")].words == ("0,1", "10.0.0.1:29500")
