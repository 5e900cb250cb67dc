"""The master publishes its state."""

from rl_agent.cluster.protocol.events import PhaseDecided, PhaseOrdered
from rl_agent.cluster.protocol.records import ClusterPaths, PhaseKey
from rl_agent.cluster.protocol.view import view_of
from tests.unit.cluster.cluster_states import LEASE_S, MASTER, Run

PATHS = ClusterPaths("run", 2)


def test_a_state_that_has_not_changed_makes_a_view_equal_to_the_last():
    run = Run(2, ranks=[1])
    last = view_of(run.state, PATHS).model_copy(update={"number": 7, "beat": 40})
    assert view_of(run.state, PATHS, last) == last
    run.do(PhaseOrdered(PhaseKey(1, "update")))
    assert view_of(run.state, PATHS, last) != last


def test_it_names_members_by_rank_with_weights_and_status():
    run = Run(3, ranks=[2, 1])
    run.see("j", None)
    run.look_for(LEASE_S + 1, beating=[("m2", 2), ("j", None)])
    view = view_of(run.state, PATHS)
    assert [(m.rank, m.incarnation, m.status, m.is_joiner) for m in view.members] == [
        (0, MASTER, "alive", False),
        (1, "m1", "dead", False),
        (2, "m2", "alive", False),
        (3, "j", "alive", True),
    ]
    assert (view.run_id, view.attempt, view.master, view.host) == ("run", 2, MASTER, "host-m0")


def test_only_the_newest_decisions_and_refusals_are_in_it():
    run = Run(1)
    for iteration in range(1, 40):
        run.do(PhaseDecided(PhaseKey(iteration, "rollout"), "done"))
        run.see(f"stranger-{iteration}", 5)
    view = view_of(run.state, PATHS)
    assert len(view.decisions) == len(view.refused) == 16
    assert str(PhaseKey(39, "rollout")) in view.decisions and "stranger-39" in view.refused
