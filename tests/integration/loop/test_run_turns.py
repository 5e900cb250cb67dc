"""`trainer.placement=hybrid` with real engines: a window, its early end, requests that go on elsewhere."""

import contextlib
import re

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.errors import HarnessError
from rl_agent.monitor import metrics
from rl_agent.pool.client import ask
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.pool.test_run_pool import join_early
from tests.integration.real_run import Run

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(1800)]

TASKS, SIBLINGS, LIMIT_S = 64, 2, 900


@pytest.fixture
def run(tmp_path):
    with Run(tmp_path) as loop_run:
        loop_run.change(
            {
                "env_config.train_tasks_rollout_size": TASKS,
                "env_config.server_size": 8,
                "rollout.max_vllm_sessions": 8,
                "rollout.min_vllm_sessions": 8,
                "policy_config.max_new_tokens": 160,
            }
        )
        yield loop_run


def test_a_window_ends_early_and_its_requests_move_to_a_joined_engine(run):
    port = free_port()
    manager = f"http://127.0.0.1:{port}"
    statuses = []

    def look() -> dict:
        with contextlib.suppress(HarnessError):
            statuses.append(ask(manager, "/status", None))
        return statuses[-1] if statuses else {"engines": [], "requests": {"moves": 0}}

    joined = join_early(run, manager, "spot")
    process = run.start(
        "--rl-phase", "both", "--no-final-eval",
        "--eval-interval", "9", "--max-iterations", "2", "trainer=grpo_cpu",
        "pool=elastic", f"pool.port={port}", f"rollout.group_size={SIBLINGS}", "trainer.mini_batches=3",
        "trainer.placement=hybrid",
    )  # fmt: skip
    moves_while_open = []

    def has_closed() -> bool:
        """Requests have moved on since; some may have moved before, to where they end earlier."""
        seen = look()
        moves = seen["requests"]["moves"]
        if any(e["name"] != "spot" and e["state"] != "draining" for e in seen["engines"]):
            moves_while_open.append(moves)
            return False
        return bool(moves_while_open) and moves > moves_while_open[-1]

    run.wait_until(has_closed, process, LIMIT_S)
    run.wait_until(lambda: look() and process.poll() is not None, _Alive(), LIMIT_S)
    assert process.returncode == 0, (run.home / "output").read_text()[-4000:]
    joined.terminate()
    assert joined.wait(60) == 0

    for iteration in (1, 2):
        episodes = list(read_iteration(run.paths, "train", iteration, TRAJECTORY))
        assert len(episodes) == TASKS * SIBLINGS
        assert not any(episode.failure for episode in episodes)
        assert {e.weight_version_min for e in episodes} == {e.weight_version_max for e in episodes}
    requests = statuses[-1]["requests"]
    assert requests["failed"] == 0
    assert statuses[-1]["engine_deaths"] == 0
    lines = {r["iteration"]: r for r in metrics.read(run.paths.metrics) if "update/window_s" in r}
    assert sorted(lines) == [1, 2] and lines[1]["update/window_s"] > 0
    steps = [r for r in metrics.read(run.paths.metrics) if "update_step" in r]
    assert sum(step["trainer/episodes"] for step in steps) == 2 * TASKS * SIBLINGS
    (log,) = run.log.glob("runs/latest/logs/trainer-*.log")
    states = re.findall(r"the window is (open|closed)", log.read_text())
    assert states[:4] == ["open", "closed", "open", "closed"]


class _Alive:
    """Limit of a wait that ends with its process."""

    @staticmethod
    def poll() -> None:
        return None
