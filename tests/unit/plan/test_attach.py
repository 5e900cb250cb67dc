"""A worker finds its run by a heartbeat that moves, and by nothing that lies still."""

import json
import os
from contextlib import nullcontext

import pytest

from rl_agent.cluster.shared_fs.run_lock import heartbeat_path
from rl_agent.errors import ConfigError, DeadlineError, NothingLeft
from rl_agent.plan import runs
from rl_agent.plan.attach import QUEUED_AT, check_not_late, check_reach, wait_for_run
from tests.support.rollout_setup import make_plan


class Folder:
    """A log path over time: `at` says what is written there when the clock passes it."""

    def __init__(self, home):
        self.plan = make_plan(home, engine_url="http://127.0.0.1:1")
        runs.write_plan(self.plan, None)
        self.log_path = self.plan.config.log_path
        heartbeat_path(self.log_path).parent.mkdir()
        self.now = 0.0
        self.at: dict[float, dict] = {}
        self.lines: list[str] = []

    def beat(self, number, **fields):
        return {"beat": number, "run_id": self.plan.run_id, "attempt": 1, "ended": None} | fields

    def sleep(self, seconds):
        self.now += seconds
        for when in sorted(when for when in self.at if when <= self.now):
            heartbeat_path(self.log_path).write_text(json.dumps(self.at.pop(when)))

    def wait(self):
        cluster = self.plan.config.cluster
        time = {"clock": lambda: self.now, "sleep": self.sleep}
        return wait_for_run(self.log_path, cluster, "rank 1", self.lines.append, **time)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_a_moving_heartbeat_names_the_run(folder):
    folder.at = {5.0: folder.beat(1), 7.0: folder.beat(2)}
    assert folder.wait().run_id == folder.plan.run_id
    assert folder.now < 8


def test_a_worker_that_starts_first_says_that_it_waits(folder):
    folder.at = {100.0: folder.beat(1), 102.0: folder.beat(2)}
    folder.wait()
    assert len(folder.lines) == 4
    assert folder.lines[0].startswith("rank 1: waiting for the master (rank 0)")


@pytest.mark.parametrize("left", ["silent", "ended", "without a plan"])
def test_leftovers_of_an_earlier_run_are_no_run(folder, left):
    run = {"run_id": "gone"} if left == "without a plan" else {}
    ended = {"ended": {"status": 0, "reason": ""}} if left == "ended" else {}
    beats = [folder.beat(n, **run, **ended) for n in (1, 1 if left == "silent" else 2)]
    folder.at = dict(zip((1.0, 3.0), beats, strict=True))
    with pytest.raises(DeadlineError, match=r"rank 1: no master .* for 600 s \(cluster.start_timeout_s\)"):
        folder.wait()


@pytest.mark.parametrize(
    ("ended", "queued_at", "is_late"),
    [
        ({"status": 0, "reason": "done"}, "999", True),
        ({"status": 0, "reason": "done"}, "1001", False),  # meant for the next run
        ({"status": 143, "reason": "stopped"}, "999", False),  # --resume may follow
        (None, "999", False),
        ({"status": 0, "reason": "done"}, "", False),
    ],
)
def test_a_node_whose_turn_comes_after_the_run_it_was_queued_for_is_late(folder, ended, queued_at, is_late):
    path = heartbeat_path(folder.log_path)
    path.write_text(json.dumps(folder.beat(9, ended=ended)))
    os.utime(path, (1000, 1000))
    refusal = pytest.raises(NothingLeft, match="ended before this node's turn")
    with refusal if is_late else nullcontext():
        check_not_late(folder.log_path, {QUEUED_AT: queued_at})


def test_a_pool_on_loopback_is_refused_on_another_machine_than_the_masters(folder):
    config, path = folder.plan.config, heartbeat_path(folder.log_path)
    pooled = config.model_copy(update={"pool": config.pool.model_copy(update={"kind": "elastic"})})
    path.write_text(json.dumps(folder.beat(1, host="node-0")))
    check_reach(pooled, "rank 1", "node-0")
    check_reach(config, "rank 1", "node-1")
    with pytest.raises(ConfigError, match=r"pool.host=127.0.0.1 is reached .* node-0, and not from node-1"):
        check_reach(pooled, "rank 1", "node-1")
    open_to_all = {"pool": pooled.pool.model_copy(update={"host": "0.0.0.0"})}
    check_reach(pooled.model_copy(update=open_to_all), "rank 1", "node-1")
