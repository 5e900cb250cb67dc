"""Members on a real folder, with their threads: meeting, deciding, sharing chunks."""

import threading

import pytest

from rl_agent.cluster.member.member import Member
from rl_agent.errors import DeadlineError, RetryLater, StoreError
from tests.support.cluster.members import (
    TIMEOUT_S,
    Background,
    cluster_threads,
    follow,
    master,
    plan,
    read_master,
    until,
    wait_to_die,
)


# --- one node ---
def test_alone_a_phase_is_ordered_finished_and_decided_without_threads(tmp_path):
    with Member.alone(plan(tmp_path, 3, 4)) as member:
        assert (member.rank, member.is_master, member.is_alone) == (0, True, True)
        order = member.give_order(1, "rollout")
        member.finish(1, "rollout", "skipped", ("why",))
        decision = member.wait_decision(1, "rollout", timeout_s=1)
        assert (order.seq, decision.outcome, decision.words) == (1, "skipped", ("why",))
        assert cluster_threads() == []
    left = [str(path.relative_to(tmp_path / "log")) for path in (tmp_path / "log").rglob("*.json")]
    assert sorted(left) == ["flags/run/1/1/rollout/decision.json", "flags/run/1/1/rollout/rank-0.json"]


def test_a_run_of_one_node_ends_its_threads_and_says_how_it_ended(tmp_path):
    with master(tmp_path, 1) as member:
        assert cluster_threads() == ["heartbeat", "cluster"]
        member.give_order(1, "update")
        member.finish(1, "update", "done")
        assert member.wait_decision(1, "update", timeout_s=1).outcome == "done"
    assert cluster_threads() == []
    assert read_master(tmp_path)["ended"] == {"status": 0, "reason": "done"}


# --- meeting ---
def test_a_worker_that_comes_first_waits_and_both_pass_every_phase(tmp_path):
    worker = Background(plan(tmp_path, 1, 2), follow)
    until(lambda: list((tmp_path / "log" / "cluster").rglob("*.json")), "the worker shows no life")
    with master(tmp_path, 2) as member:
        for iteration in (1, 2):
            member.give_order(iteration, "rollout")
            member.finish(iteration, "rollout", "done", (f"model {iteration}",))
            assert member.wait_decision(iteration, "rollout", timeout_s=TIMEOUT_S).outcome == "done"
    assert worker.result() == [("rollout", "done", ("model 1",)), ("rollout", "done", ("model 2",))]


def test_a_deadline_names_the_unfinished_nodes_and_their_current_work(tmp_path):
    released = threading.Event()

    def be_busy(member):
        member.next_order()
        member.set_doing("digging")
        released.wait(TIMEOUT_S)

    Background(plan(tmp_path, 1, 2), be_busy)
    with master(tmp_path, 2) as member:
        member.give_order(1, "rollout")
        member.finish(1, "rollout", "done")
        record = member.members[1].incarnation
        until(lambda: member.record_of(record).doing == "digging", "the worker does not dig")
        with pytest.raises(
            DeadlineError, match=r"iteration 1, rollout: waited 0 s for rank 1 \(.*at: digging"
        ):
            member.wait_decision(1, "rollout", timeout_s=0.05)
        released.set()


def test_a_run_that_breaks_off_ends_the_waits_of_the_workers_and_tells_why(tmp_path):
    worker = Background(plan(tmp_path, 1, 2), wait_to_die)
    with pytest.raises(StoreError), master(tmp_path, 2):
        raise StoreError("the disk is full")
    failure = worker.result()
    assert isinstance(failure, RetryLater) and "aborted the run: the disk is full" in str(failure)
