"""Whom a phase waits for, in words."""

import pytest

from rl_agent.cluster.protocol.events import PhaseOrdered
from rl_agent.cluster.protocol.records import ClusterPaths, PhaseKey
from rl_agent.cluster.protocol.stragglers import doing_of, missing_ranks, stragglers
from rl_agent.cluster.protocol.view import view_of
from tests.unit.cluster.cluster_states import MASTER, Run, record

UPDATE, TRAIN = PhaseKey(1, "update"), PhaseKey(1, "train-1")
PATHS = ClusterPaths("run", 1)


def shown(run):
    return view_of(run.state, PATHS)


@pytest.fixture
def run():
    run = Run(3, ranks=[1, 2])
    run.see("j", None)
    run.do(PhaseOrdered(UPDATE))
    return run


def test_a_phase_waits_for_participants_without_a_flag_and_for_no_joiner(run):
    records = {"m1": record("m1", 1, doing="train 1", doing_s=7.6)}
    records[MASTER] = record(MASTER, 0, flags={UPDATE: "done"})
    assert stragglers(shown(run), records.get, UPDATE) == [
        "rank 1 (host-m1), at: train 1, for 8 s",
        "rank 2 (host-m2), which has not written its record",
    ]
    assert len(stragglers(shown(run), records.get, UPDATE, besides="m2")) == 1


def test_a_member_that_is_gone_is_no_straggler(run):
    run.see("m1", 1, state="left", reason="preempted")
    assert [name.split(",")[0] for name in stragglers(shown(run), {}.get, TRAIN)] == [
        "rank 0 (host-m0)",
        "rank 2 (host-m2)",
    ]
    assert missing_ranks(shown(run)) == "rank 1"


def test_ranks_that_nobody_has_are_listed():
    assert missing_ranks(None) == "the others"
    assert missing_ranks(shown(Run(3, ranks=[2]))) == "rank 1"
    assert missing_ranks(shown(Run(1))) == "nobody"


def test_a_node_is_described_by_its_name_or_else_by_its_rank(run):
    assert doing_of(shown(run), {}.get, 2) == "rank 2 (host-m2), which has not written its record"
    assert doing_of(None, {}.get, 2) == doing_of(shown(Run(3)), {}.get, 2) == "rank 2"
