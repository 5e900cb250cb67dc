"""Members on a real folder, with their threads: who may come, who is lost, what fails."""

import json
import signal
import threading

import pytest

from rl_agent.cluster.protocol.records import MASTER_FILE
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.errors import ConfigError, DeadlineError, RetryLater, StoreError
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


def test_leftovers_of_earlier_runs_confuse_nobody(tmp_path):
    with master(tmp_path, 1, run_id="earlier"):
        pass
    with pytest.raises(StoreError), master(tmp_path, 1):
        raise StoreError("an earlier start of this very attempt")
    record = next((tmp_path / "log" / "cluster" / "ranks" / "run" / "1").glob("*.json"))
    dead = json.loads(record.read_text()) | {"incarnation": "dead", "rank": 1, "state": "member"}
    record.with_name("dead.json").write_text(json.dumps(dead))
    (tmp_path / "log" / MASTER_FILE).write_text("{")

    worker = Background(plan(tmp_path, 1, 2), follow)
    with master(tmp_path, 2) as member:
        assert {m.incarnation for m in member.members}.isdisjoint({"dead"})
        member.give_order(1, "update")
        member.finish(1, "update", "done")
        member.wait_decision(1, "update", timeout_s=TIMEOUT_S)
    assert worker.result() == [("update", "done", ())]


def test_a_node_with_another_configuration_is_refused(tmp_path):
    other = plan(tmp_path, 1, 2)
    other = other.model_copy(update={"config": other.config.model_copy(update={"seed": 99})})
    worker = Background(other, follow)
    with (
        pytest.raises(DeadlineError, match=r"the start: waited .* for rank 1"),
        master(tmp_path, 2, "cluster.start_timeout_s=1"),
    ):
        raise AssertionError("began without rank 1")
    assert isinstance(worker.result(), ConfigError) and "compare" in str(worker.outcome)


def test_a_node_of_an_attempt_that_is_over_is_told_to_start_again(tmp_path):
    with master(tmp_path, 1, attempt=2):
        late = Background(plan(tmp_path, 1, 2), follow).result()
    assert isinstance(late, RetryLater) and "attempt 2, uses this log path" in str(late)


def test_a_dead_rank_is_awaited_by_name_and_its_replacement_is_admitted(tmp_path):
    may_leave, lines = threading.Event(), []
    words = ("cluster.replacement_timeout_s=0.2", "cluster.on_node_loss=wait")
    first = Background(plan(tmp_path, 1, 2, *words), lambda member: may_leave.wait(TIMEOUT_S))
    with master(tmp_path, 2, *words, lines=lines) as member:
        may_leave.set()
        first.result()
        until(lambda: member.coordinator.state.missing_ranks, "rank 1 did not leave")
        with pytest.raises(DeadlineError, match="a replacement: waited 0 s for rank 1"):
            member.answer_losses()
        assert any("rank 1 (" in line and "has to take its place" in line for line in lines)
        second = Background(plan(tmp_path, 1, 2, *words), follow)
        until(lambda: not member.coordinator.state.missing_ranks, "rank 1 was not replaced")
        member.answer_losses()
    assert second.result() == []


def test_with_on_node_loss_stop_a_dead_rank_ends_the_run(tmp_path):
    may_leave, stop = threading.Event(), "cluster.on_node_loss=stop"
    first = Background(plan(tmp_path, 1, 2, stop), lambda member: may_leave.wait(TIMEOUT_S))
    with master(tmp_path, 2, stop) as member:
        member.answer_losses()
        may_leave.set()
        first.result()
        until(lambda: member.coordinator.state.missing_ranks, "rank 1 did not leave")
        with pytest.raises(RetryLater, match=r"rank 1 .*; with cluster.on_node_loss=stop the run ends here"):
            member.answer_losses()


def test_a_replaced_master_stops_and_leaves_the_new_ones_record_alone(tmp_path):
    lines = []
    with (
        pytest.raises(RetryLater, match="has taken over this log path"),
        master(tmp_path, 1, lines=lines) as old,
    ):
        with master(tmp_path, 1, attempt=2) as new:
            until(lambda: lines, "the old master goes on")
            until(lambda: read_master(tmp_path)["master"] == new.incarnation, "the new master has vanished")
        old.check()
    assert read_master(tmp_path)["master"] == new.incarnation


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_folder_ends_in_one_line_rather_than_in_a_silent_thread(tmp_path, monkeypatch, rank):
    real = SharedFolder.write_whole

    def wait(member):
        until(lambda: member.view is not None, "no view")
        with pytest.raises(StoreError, match="No space left") as caught:
            member._wait("anything", lambda: None, lambda: "nobody", timeout_s=TIMEOUT_S)
        return caught.value

    is_over = threading.Event()
    nodes = [
        Background(plan(tmp_path, other, 2), lambda member: is_over.wait(TIMEOUT_S))
        for other in (0, 1)
        if other != rank
    ]
    failing = Background(plan(tmp_path, rank, 2), wait)
    until(lambda: len(cluster_threads()) == 4, "not all are there")
    until(lambda: (tmp_path / "log" / MASTER_FILE).exists(), "no master")
    until(lambda: len(read_master(tmp_path)["members"]) == 2, "not both are members")

    def full(self, name, record, *, is_durable=True):
        if record.get("rank", 0) != rank:  # what the master publishes has no rank
            return real(self, name, record, is_durable=is_durable)
        raise StoreError(f"{name}: cannot be written: No space left on device")

    monkeypatch.setattr(SharedFolder, "write_whole", full)
    assert isinstance(failing.result(), StoreError)
    is_over.set()
    lines = [line for line in failing.lines if "No space left" in line]
    assert "trying again" in lines[0] and len(lines) <= 4
    for node in nodes:
        node.result()


def test_a_log_path_that_vanishes_stops_the_node(tmp_path):
    with pytest.raises(StoreError, match="is gone"), master(tmp_path, 1) as member:
        (tmp_path / "log").rename(tmp_path / "elsewhere")
        member._wait("anything", lambda: None, lambda: "nobody", timeout_s=TIMEOUT_S)


def test_a_node_whose_driver_is_stopped_shows_no_life_and_says_so(tmp_path, sleeper):
    environ = {"RL_AGENT_DRIVER_PID": str(sleeper.pid)}
    worker = Background(plan(tmp_path, 1, 2), wait_to_die, environ=environ)
    with master(tmp_path, 2) as member:
        sleeper.send_signal(signal.SIGSTOP)
        until(lambda: member.members[1].status == "dead", "a stopped node lives on")
        assert any("is stopped" in line for line in worker.lines)
        sleeper.send_signal(signal.SIGCONT)
        failure = worker.result()
    assert isinstance(failure, RetryLater) and "declared this node dead" in str(failure)


def test_a_node_whose_driver_is_gone_leaves(tmp_path, sleeper):
    environ = {"RL_AGENT_DRIVER_PID": str(sleeper.pid)}
    worker = Background(plan(tmp_path, 1, 2), wait_to_die, environ=environ)
    with master(tmp_path, 2) as member:
        sleeper.kill()
        sleeper.wait()
        failure = worker.result()
        assert isinstance(failure, RetryLater) and "is gone" in str(failure)
        until(lambda: member.members[1].status == "left", "it did not say good-bye")
