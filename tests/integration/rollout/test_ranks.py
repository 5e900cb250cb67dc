"""Several nodes collect one iteration from a shared log path: processes of their own, each with an engine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rl_agent.config.plan import Plan
from rl_agent.errors import EXIT_RETRY_LATER
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.support.rollout_setup import engine_process, make_plan, write_tasks

pytestmark = pytest.mark.extended

DEADLINE_S = 40
OVERRIDES = (
    "+env_config.kinds.instant=benchmarks.rollout.environments:InstantEnvironment",
    "env_config.train_tasks_rollout_size=-1",
    "env_config.server_size=8",
    "rollout.fsync=false",
    "cluster.heartbeat_s=0.2",
    "cluster.lease_s=2",
    "cluster.chunk_tasks=2",
)


@dataclass
class Ranks:
    """The nodes of a run; every one is ended with the test."""

    home: Path
    stack: ExitStack
    tasks: int = 200
    processes: dict[int, subprocess.Popen] = field(default_factory=dict)

    def plan(self, *overrides: str, latency_s: float = 0.25, **command: object) -> Plan:
        """The plan of one node with an engine of its own."""
        engine = engine_process(self.home, latency=f"constant:{latency_s}", max_num_seqs=64)
        url, self.engine = self.stack.enter_context(engine)
        words = {word.partition("=")[0]: word for word in (*OVERRIDES, *overrides)}
        plan = make_plan(self.home, *words.values(), engine_url=url)
        write_tasks(plan, self.tasks, env="instant", difficulty="easy")
        return plan.model_copy(update={"command": plan.command.model_copy(update=command)})

    def start(self, plan: Plan, *words: str, **environ: str) -> subprocess.Popen:
        rank = plan.command.rank if not plan.command.join else 100
        path = self.home / f"plan-{plan.attempt}-{rank}.json"
        plan.write(path)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cluster.rank_process", "--plan", str(path), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | environ,
        )
        self.processes[rank] = process
        self.stack.callback(end, process)
        return process

    def start_all(self, *weights: int, **changes: object) -> None:
        for rank in range(len(weights)):
            command = {"rank": rank, "num_nodes": len(weights), "rank_weights": weights}
            self.start(self.plan(**command), **changes)

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.home / "log")

    def recorded(self) -> Counter[int]:
        """Episodes on the disk by rank, also those that will not count."""
        folder = self.paths.trajectory_dir("train")
        counts: Counter[int] = Counter()
        for path in folder.glob("*_rank_*") if folder.exists() else ():
            if not path.name.endswith((".tmp", ".lock")):
                counts[int(path.name.partition("_rank_")[2].split("_")[0].split(".")[0])] += lines(path)
        return counts

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, self.recorded()
            time.sleep(0.02)

    def wait(self, rank: int) -> tuple[int, str, str]:
        process = self.processes[rank]
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
        return process.returncode, stdout, stderr

    def by_rank(self) -> Counter[int]:
        """Ranks of the episodes that count; each of them must be there exactly once."""
        episodes = list(read_iteration(self.paths, "train", 1, TRAJECTORY))
        assert sorted(episode.key.task_id for episode in episodes) == sorted(
            f"task-{i}" for i in range(self.tasks)
        )
        return Counter(episode.rank for episode in episodes)


def lines(path: Path) -> int:
    try:
        return max(0, path.read_bytes().count(b"\n") - 1)
    except FileNotFoundError:  # renamed meanwhile
        return 0


def end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def ranks(tmp_path):
    with ExitStack() as stack:
        yield Ranks(tmp_path, stack)


def complete(tasks: int) -> str:
    return f"submitted={tasks} completed={tasks} failed=0 timed_out=0 abandoned=0\n"


def test_three_ranks_of_different_weights_run_each_episode_once(ranks):
    ranks.tasks, weights = 480, (2, 1, 1)
    for rank, places in enumerate((16, 8, 8)):
        size = f"env_config.server_size={places}"
        command = {"rank": rank, "num_nodes": 3, "rank_weights": weights}
        ranks.start(ranks.plan(size, latency_s=0.15, **command))

    assert ranks.wait(0)[:2] == (0, complete(480))
    accounts = [ranks.wait(rank)[:2] for rank in (1, 2)]
    shares = ranks.by_rank()
    assert accounts == [(0, complete(shares[rank])) for rank in (1, 2)]
    assert sum(shares.values()) == 480
    names = {path.name.partition("iteration1")[2] for path in ranks.paths.trajectory_dir("train").iterdir()}
    assert names == {"_rank_0", "_rank_1", "_rank_2", ".manifest.json"}
    (record,) = [json.loads(line) for line in ranks.paths.metrics.read_text().splitlines()]
    assert record["train/episodes"] == 480


def test_a_slow_rank_sheds_work_to_the_others(ranks):
    for rank, latency_s in enumerate((0.25, 2.5)):
        command = {"rank": rank, "num_nodes": 2, "rank_weights": (1, 1)}
        ranks.start(ranks.plan(latency_s=latency_s, **command))

    assert ranks.wait(0)[:2] == (0, complete(200))
    assert ranks.wait(1)[0] == 0
    assert ranks.by_rank()[1] < 75  # of 100 that were meant for it


def test_a_killed_ranks_chunks_move_and_its_file_counts_up_to_the_cut(ranks):
    ranks.start_all(1, 1, 1)
    ranks.wait_until(lambda: ranks.recorded()[1] > 8)
    os.killpg(ranks.processes[1].pid, signal.SIGKILL)
    kept = ranks.recorded()[1]

    status, account, log = ranks.wait(0)
    assert (status, account) == (0, complete(200))
    assert ranks.wait(2)[0] == 0
    assert "rank 1" in log
    assert ranks.by_rank()[1] >= kept > 8
    entries = {entry["rank"]: entry for entry in json.loads(ranks.paths.manifest("train", 1).read_bytes())}
    for rank, entry in entries.items():
        assert entry["bytes"] == ranks.paths.shard("train", 1, rank=rank).stat().st_size


def test_a_rank_that_wakes_up_after_it_was_given_up_changes_nothing(ranks):
    ranks.start_all(1, 1)
    ranks.wait_until(lambda: ranks.recorded()[1] > 8)
    os.killpg(ranks.processes[1].pid, signal.SIGSTOP)
    assert ranks.wait(0)[:2] == (0, complete(200))
    os.killpg(ranks.processes[1].pid, signal.SIGCONT)

    assert ranks.wait(1)[0] == EXIT_RETRY_LATER
    ranks.by_rank()


def test_a_rank_asked_to_stop_leaves_its_chunks_to_the_others_at_once(ranks):
    lease = "cluster.lease_s=60"
    for rank in range(2):
        ranks.start(ranks.plan(lease, rank=rank, num_nodes=2, rank_weights=(1, 1)))
    ranks.wait_until(lambda: ranks.recorded()[1] > 8)
    ranks.processes[1].terminate()

    assert ranks.wait(1)[0] == 128 + signal.SIGTERM
    assert ranks.wait(0)[:2] == (0, complete(200))
    ranks.by_rank()


def test_a_node_that_joins_later_helps_with_what_is_left(ranks):
    ranks.start(ranks.plan("env_config.server_size=2"))  # 25 s alone: longer than any node takes to start
    growing = ranks.paths.checkpoint_shard("train", 1)
    ranks.wait_until(lambda: growing.exists() and lines(growing) > 8)
    ranks.start(ranks.plan(latency_s=0.05, join=True))

    assert ranks.wait(0)[:2] == (0, complete(200))
    status, account, log = ranks.wait(100)
    assert status == 0, log
    shares = ranks.by_rank()
    assert account == complete(shares[1])
    assert shares[1] > 0
    assert ranks.paths.shard("train", 1).exists()


def test_after_the_master_died_fewer_nodes_resume_what_all_have_recorded(ranks):
    ranks.start_all(1, 1, 1)
    ranks.wait_until(lambda: min(ranks.recorded()[rank] for rank in range(3)) > 8)
    os.killpg(ranks.processes[0].pid, signal.SIGKILL)
    assert [ranks.wait(rank)[0] for rank in (1, 2)] == [EXIT_RETRY_LATER] * 2
    before = ranks.recorded().total()

    resumed = ranks.plan().model_copy(update={"attempt": 2})
    ranks.start(resumed, "--resume", "required")
    assert ranks.wait(0)[:2] == (0, complete(200))
    assert 24 < before < 200
    ranks.by_rank()
    entries = {entry["file"]: entry for entry in json.loads(ranks.paths.manifest("train", 1).read_bytes())}
    own = ranks.paths.shard("train", 1).name
    assert len(entries) == 4
    assert entries[own]["episodes"] <= 200 - before + 3 * 8


def test_a_rank_whose_engine_was_lost_goes_on_with_what_it_had_claimed(ranks):
    ranks.start(ranks.plan("rollout.request_retries=0", rank=0, num_nodes=2, rank_weights=(1, 1)))
    plan = ranks.plan("rollout.request_retries=0", rank=1, num_nodes=2, rank_weights=(1, 1))
    lost = ranks.engine
    ranks.start(plan, "--calls", "100")
    ranks.wait_until(lambda: ranks.recorded()[1] > 8)
    os.killpg(lost.pid, signal.SIGKILL)
    lost.wait()
    ranks.stack.enter_context(engine_process(ranks.home, port=plan.config.engine.base_url.rpartition(":")[2]))

    assert ranks.wait(0)[:2] == (0, complete(200))
    status, _, log = ranks.wait(1)
    assert (status, "rollout: the engine at" in log) == (0, True)
    ranks.by_rank()
    assert ranks.paths.shards("train", 1) == [ranks.paths.shard("train", 1, rank=rank) for rank in (0, 1)]


def test_a_shared_folder_that_shows_everything_late_costs_no_episode(ranks):
    ranks.start_all(1, 1, RL_AGENT_FOLDER_LAG="1:7")
    ranks.wait_until(lambda: ranks.recorded()[1] > 8)
    os.killpg(ranks.processes[1].pid, signal.SIGKILL)
    assert ranks.wait(0)[:2] == (0, complete(200))
    ranks.by_rank()
