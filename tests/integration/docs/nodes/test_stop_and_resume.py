"""docs/how-to/stop-and-resume.md: a small model, one iteration, all nodes on one machine."""

import os
import signal

import pytest

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import parts_of, read_iteration
from tests.integration.docs.reader import Reader, Running

PAGE = "docs/how-to/stop-and-resume.md"
SIBLINGS = 4


def recorded(paths: RunPaths) -> set[str]:
    """Keys of the first iteration's training episodes that are on the disk."""
    if not parts_of(paths, "train", 1):
        return set()
    return {str(first.key) for first in read_iteration(paths, "train", 1, TRAJECTORY)}


def press_ctrl_c(terminal: Running) -> None:
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.process.wait(30) == 130, terminal.printed()[-4000:]


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_ctrl_c_costs_no_episode_and_the_model_before_comes_back(tmp_path, small):
    words = small.run("env_config.train_tasks_rollout_size=60")
    few = f"--eval-interval 6 --max-iterations 1 {words}"
    reader = Reader(PAGE, tmp_path, {"--eval-interval 6": few, "--to 7": "--to 1"})
    small.give_tasks(reader)
    start, resume = reader.commands("bash scripts/run.sh --data-path")
    paths = RunPaths(reader.home / "exp1")

    with reader.leaves_running(start) as terminal:
        terminal.wait_until(lambda: len(recorded(paths)) >= 5, 400)
        press_ctrl_c(terminal)
    before = recorded(paths)
    reader.types(resume, timeout_s=900)
    after = recorded(paths)
    assert 5 <= len(before) < len(after) == 60 and before < after
    assert paths.model_link.resolve().name == "version-000001"

    to_the_one_before, to_a_version = reader.commands("python -m rl_agent.cli rollback")
    assert reader.types(to_the_one_before) == "model=the base model\n" and not paths.model_link.exists()
    reader.types(to_a_version)
    assert paths.model_link.resolve().name == "version-000001"


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_work_begun_by_four_nodes_is_finished_by_two(tmp_path, small, vllm_server):
    words = small.collect_at(vllm_server, f"rollout.group_size={SIBLINGS}")
    once = f"run.sh --data-path /home/user --log-path /shared/exp1 {words}"
    reader = Reader(PAGE, tmp_path, {"run.sh …": once})
    small.give_tasks(reader)
    start, resume, worker = reader.commands("bash scripts/run.sh … --num-nodes")
    paths = RunPaths(reader.shared / "exp1")

    def of_rank(rank: int) -> str:
        return start.replace("--master", f"--worker {rank}")

    with (
        reader.leaves_running(of_rank(1)) as first,
        reader.leaves_running(of_rank(2)) as two,
        reader.leaves_running(of_rank(3)) as three,
        reader.leaves_running(start) as master,
    ):
        master.wait_until(lambda: len(parts_of(paths, "train", 1)) == 4 and len(recorded(paths)) >= 10, 300)
        press_ctrl_c(master)
        assert [node.process.wait(30) for node in (first, two, three)] == [75, 75, 75]
    before = recorded(paths)

    with reader.leaves_running(worker) as other:
        reader.types(resume, timeout_s=400)
        other.ends_well(60)
    after = recorded(paths)
    assert 10 <= len(before) < len(after) == 60 * SIBLINGS and before < after
