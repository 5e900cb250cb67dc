"""The shared folder leads to a diagnosis, and to advice."""

import pytest

from rl_agent.cluster.protocol.diagnosis import FolderPolls, diagnose
from rl_agent.cluster.protocol.records import Decision, PhaseOrder, RunEnd
from tests.unit.cluster.cluster_states import member, record, report, view

ORDER = PhaseOrder(seq=4, iteration=3, phase="rollout", participants={"m0": 0, "m1": 1})


BOTH = (member(0), member(1))


def diagnosis(*, members=BOTH, silent=(), stopped=(), records=None, **fields):
    """Diagnose a run of these members: the lines that describe it, and the lines of advice."""
    known = {m.incarnation: record(m.incarnation, m.rank, host=m.host) for m in members} | (records or {})
    beating = frozenset(known) - frozenset(silent)
    master = view(members=members, **({"order": ORDER} | fields))
    seen, advice = diagnose(FolderPolls(master, known, beating, "m0" not in silent, frozenset(stopped)))
    return "\n".join(seen), "\n".join(advice)


def test_a_healthy_run_shows_phase_nodes_and_waits_and_needs_nothing():
    work = report((3, "rollout"), claimed=[1, 2, 3], completed=[1])
    busy = record("m1", 1, host="host-1", work=work, doing="train 3: 5 of 9", doing_s=65.0)
    finished = record("m0", 0, host="host-0", flags={(3, "rollout"): "done"})
    seen, advice = diagnosis(records={"m0": finished, "m1": busy})
    assert "rollout of iteration 3, not decided" in seen
    assert "rank 1 (host-1), process 7: alive" in seen and "1 of 3 claimed chunks done" in seen
    assert "waits for rank 1 (host-1), at: train 3: 5 of 9, for 65 s" in seen
    assert "waits for rank 0" not in seen and advice == ""


def test_a_silent_node_is_named_with_its_process_and_what_will_happen():
    seen, advice = diagnosis(silent=["m1"])
    assert "rank 1 (host-1), process 7: SILENT" in seen
    assert "rank 1 (host-1) sends no heartbeat" in advice and "process 7" in advice


def test_a_silent_master_comes_first_and_alone():
    _, advice = diagnosis(silent=["m0", "m1"])
    assert advice.startswith("rank 0 (host-0) sends no heartbeat") and "rank 1" not in advice


def test_a_stopped_process_is_told_with_the_command_that_wakes_it():
    seen, advice = diagnosis(silent=["m1"], stopped=["m1"])
    assert "STOPPED" in seen and advice == "rank 1 (host-1) is stopped: kill -CONT 7"
    seen, advice = diagnosis(silent=["m0"], stopped=["m0"])
    assert "STOPPED" in seen and advice == "rank 0 (host-0) is stopped (SIGSTOP): kill -CONT 7"


def test_a_dead_node_is_told_with_the_reason_and_may_be_replaced():
    seen, advice = diagnosis(members=(member(0), member(1, status="dead", reason="silent for 31 s")))
    assert "dead: silent for 31 s" in seen and advice.startswith("rank 1 may be started (again)")


def test_a_run_that_starts_tells_which_ranks_are_missing():
    seen, advice = diagnosis(members=(member(0),), order=None)
    assert "rank 0 (host-0) waits for rank 1" in seen and "rank 1 may be started" in advice


def test_nodes_that_wait_or_were_refused_are_shown():
    strangers = {"x": record("x", 1, host="host-x", state="waiting"), "y": record("y", 1, host="host-y")}
    seen, _ = diagnosis(records=strangers, refused={"y": "rank 1 is taken"})
    assert "rank 1 (host-x), process 7: waits to be admitted" in seen
    assert "rank 1 (host-y), process 7: refused: rank 1 is taken" in seen


def test_between_two_phases_the_others_wait_for_the_master():
    seen, _ = diagnosis(decisions={"3/rollout": Decision(outcome="done")})
    assert "decided: done" in seen and "wait for the next order of rank 0" in seen


@pytest.mark.parametrize(("status", "advised"), [(0, False), (75, True)])
def test_a_run_that_has_ended_says_how_and_needs_help_only_if_it_broke_off(status, advised):
    seen, advice = diagnosis(ended=RunEnd(status=status, reason="because"), silent=["m0", "m1"])
    assert f"ended with status {status}: because" in seen and bool(advice) is advised
