"""Whole runs in virtual time: nodes that die, sleep, leave and come, on a folder that shows things late."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.cluster.protocol.records import PhaseKey
from rl_agent.errors import RetryLater
from tests.integration.cluster.cluster_world import World
from tests.support.rollout_setup import make_plan

LEASE_S = 30.0
LONGEST_CHUNK_S = 16.0
"""A simulated node looks whether it is still a member between two chunks."""
DEADLINE_S = 6000.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("world")


@functools.cache
def plan(folder, lease_s):
    words = (f"cluster.lease_s={lease_s}", "cluster.chunk_tasks=2")
    return make_plan(folder, *words, engine_url="http://127.0.0.1:1", model=folder)


def world(folder, *, seed=1, lag_s=0.0, lease_s=LEASE_S, num_nodes=3, **sizes):
    started = World(plan(folder, lease_s), num_nodes=num_nodes, seed=seed, lag_s=lag_s, **sizes)
    for rank in started.random.sample(range(num_nodes), num_nodes):
        started.start(rank)
    return started


def run(cluster):
    cluster.run(DEADLINE_S)
    cluster.check_counts()
    cluster.check_decisions()
    return cluster


def is_finished(cluster):
    return len(cluster.parts) == cluster.iterations and cluster.node("n0").failure is None


@pytest.mark.parametrize("lag_s", [0.0, 20.0, 60.0])
def test_without_faults_every_node_ends_well_however_late_it_sees_others(folder, lag_s):
    cluster = run(world(folder, lag_s=lag_s, lease_s=LEASE_S + 2 * lag_s))
    assert is_finished(cluster)
    assert [node.failure for node in cluster.nodes] == [None] * 3


@pytest.mark.parametrize("lag_s", [0.0, 60.0])
def test_the_others_finish_without_a_dead_node_and_the_master_names_it(folder, lag_s):
    cluster = world(folder, lag_s=lag_s, lease_s=LEASE_S + 2 * lag_s)
    cluster.at(15.0 + lag_s, lambda w: w.kill("n2"))
    run(cluster)
    assert is_finished(cluster) and cluster.node("n1").failure is None
    assert any("rank 2" in line and "is dead" in line for line in cluster.node("n0").lines)


@pytest.mark.parametrize("leases", [2, 0.5])
def test_a_node_goes_on_after_a_sleep_unless_that_outlasts_the_lease(folder, leases):
    cluster = world(folder)
    cluster.at(10.0, lambda w: w.freeze("n1", leases * LEASE_S))
    run(cluster)
    failure = cluster.node("n1").failure
    assert is_finished(cluster)
    if leases < 1:
        assert failure is None
    else:
        assert isinstance(failure, RetryLater) and "declared this node dead" in str(failure)


@pytest.mark.parametrize("lag_s", [0.0, 20.0])
@pytest.mark.parametrize("at_s", [25.0, 60.0])
def test_the_death_of_the_master_is_seen_by_all_within_the_lease_and_named(folder, lag_s, at_s):
    lease_s = LEASE_S + 2 * lag_s
    cluster = world(folder, lag_s=lag_s, lease_s=lease_s, tasks=60)
    at_s += 5 * lag_s
    cluster.at(at_s, lambda w: w.kill("n0"))
    run(cluster)
    assert cluster.now <= at_s + lag_s + lease_s + LONGEST_CHUNK_S + 5.0
    for name in ("n1", "n2"):
        failure = cluster.node(name).failure
        assert isinstance(failure, RetryLater) and "the master, rank 0 (" in str(failure)


def test_a_joiner_helps_at_any_time_and_hands_its_chunks_back_at_once(folder):
    cluster = world(folder, tasks=60)
    cluster.at(12.0, lambda w: w.start(0, "j", is_joiner=True))
    cluster.at(40.0, lambda w: w.leave("j"))
    run(cluster)
    (part,) = [part for part in cluster.parts[1] if part.rank == 3]
    assert part.cut_bytes and is_finished(cluster)
    assert any(line.startswith("rank 3") and " left: " in line for line in cluster.node("n0").lines)


def test_a_replacement_of_a_dead_rank_is_admitted_and_works(folder):
    cluster = world(folder, tasks=80)
    cluster.at(10.0, lambda w: w.kill("n1"))
    cluster.at(12.0, lambda w: w.start(1, "again"))
    run(cluster)
    assert is_finished(cluster) and cluster.node("again").failure is None
    assert any(part.incarnation == cluster.node("again").member.incarnation for part in cluster.parts[1])


def test_a_training_that_loses_a_node_is_ordered_again_for_the_rest(folder):
    cluster = world(folder, tasks=2, iterations=1, seed=3)
    killed = []

    def kill_in_training(w):
        order = w.node("n0").member.coordinator.state.order
        if order is not None and order.phase == "update" and not killed:
            killed.append(w.now)
            w.kill("n2")

    for tenth in range(600):
        cluster.at(tenth / 10, kill_in_training)
    run(cluster)
    decisions = {phase: decision for (_, phase), decision in cluster.node("n1").decisions.items()}
    outcomes = {phase: decision.outcome for phase, decision in decisions.items()}
    assert outcomes == {"rollout": "done", "train-2": "lost", "train-3": "done", "update": "done"}
    assert decisions["train-2"].lost[0].startswith("rank 2 (")


def test_a_half_written_claim_is_replaced_once_its_node_is_gone(folder):
    cluster = world(folder, tasks=30, iterations=1)

    def tear_a_claim(w):
        key, master = PhaseKey(1, "rollout"), w.node("n0").member
        w.server.create_exclusive(f"{master._paths.claims(key, master.incarnation)}/14", {})
        w.kill("n2")

    cluster.at(12.0, tear_a_claim)
    run(cluster)
    assert is_finished(cluster)


def test_nodes_that_train_ask_the_shared_folder_for_little(folder):
    cluster = world(folder, num_nodes=8, tasks=2, iterations=1, training_s=(300.0, 301.0), least_pause_s=0.0)
    cluster.at(100.0, lambda w: w.server.operations.clear())
    counts = []
    cluster.at(200.0, lambda w: counts.append(dict(w.server.operations)))
    run(cluster)
    per_second = {name: count / 100 for name, count in counts[0].items()}
    assert max(per_second[f"n{rank}"] for rank in range(1, 8)) <= 6
    assert sum(per_second.values()) / 8 <= 11


NODES = st.sampled_from(["n0", "n1", "n2", "again", "j"])
FAULTS = st.one_of(
    st.tuples(st.just("kill"), NODES),
    st.tuples(st.just("freeze"), NODES, st.floats(1.0, 4 * LEASE_S)),
    st.tuples(st.just("leave"), NODES),
    st.tuples(st.just("start_again")),
    st.tuples(st.just("start_joiner")),
)


def apply(cluster, fault, words):
    if fault == "start_again":
        if cluster.node("again") is None:
            cluster.start(1, "again")
    elif fault == "start_joiner":
        if cluster.node("j") is None:
            cluster.start(0, "j", is_joiner=True)
    else:
        getattr(cluster, fault)(*words)


@given(
    seed=st.integers(0, 2**32 - 1),
    lag_s=st.sampled_from([0.0, 5.0, 60.0]),
    faults=st.lists(st.tuples(st.floats(0.0, 200.0), FAULTS), min_size=1, max_size=6),
)
def test_under_any_fault_no_node_hangs_and_every_episode_counts_once(folder, seed, lag_s, faults):
    cluster = world(folder, seed=seed, lag_s=lag_s)
    for time, (fault, *words) in faults:
        cluster.at(time, lambda w, fault=fault, words=words: apply(w, fault, words))
    run(cluster)
    master = cluster.node("n0")
    if master.failure is None and not master.is_killed:
        assert is_finished(cluster)
    for node in cluster.nodes:
        assert node.is_killed or node.has_ended
