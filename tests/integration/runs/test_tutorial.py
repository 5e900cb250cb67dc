"""The tutorials, typed as they stand and in their order: their commands end well, and do what they say."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rl_agent.monitor import metrics
from rl_agent.monitor.report import reward_rows
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import (
    commands_of,
    copy_project,
    left_running,
    missing_lines,
    promised,
    type_in,
)
from tests.unit.docs.documented_blocks import blocks

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


def commands(page: Path) -> list[str]:
    return blocks(page, "bash")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The folder where the tutorials are typed, one after the other."""
    return copy_project(tmp_path_factory.mktemp("project"))


def test_the_first_tutorial_makes_the_model_better(checkout):
    typed = commands(checkout / "docs/tutorials/first-run.md")
    quickstart = "bash scripts/quickstart.sh"
    assert typed[0].strip() == quickstart
    # The first of the four iterations shows it: by 13 to 22 points. What a run says goes to stderr.
    typed[0] = f"{quickstart} --iterations 1 2>&1"

    printed = [type_in(checkout, block) for block in typed]

    assert missing_lines(promised(checkout / "docs/tutorials/first-run.md", quickstart), printed[0]) == []
    rows = reward_rows(RunPaths(checkout / "quickstart/run"))
    accuracy = [row["test/success_rate"] for row in rows.values()]
    assert len(accuracy) == 2
    assert accuracy[-1] > accuracy[0] + 0.1
    assert (checkout / "quickstart/run/reward.png").exists()


@pytest.mark.extended
def test_three_nodes_on_one_machine_collect_and_train_together(checkout):
    if not (checkout / "quickstart/base-model").exists():  # the first tutorial was not typed before
        type_in(checkout, "bash scripts/quickstart.sh --iterations 1")
    for block in commands(checkout / "docs/tutorials/three-nodes.md"):
        type_in(checkout, block)

    paths = RunPaths(checkout / "quickstart/nodes")
    for node in range(3):
        assert "stopping" not in (checkout / f"node-{node}.log").read_text()
    for split, episodes in (("train", 512), ("test", 100)):
        keys = [trajectory.key for trajectory in read_iteration(paths, split, 1, TRAJECTORY)]
        assert len(keys) == len(set(keys)) == episodes
    assert len(list(paths.trajectory_dir("train").glob("*.iteration1_rank_[012]*"))) == 3
    assert paths.model_link.resolve().name == "version-000001"


@pytest.mark.extended
@pytest.mark.timeout(3600)
def test_the_web_tutorial_makes_an_agent_click_better(checkout):
    typed = commands(checkout / "docs/tutorials/web-agent.md")
    quickstart = "bash scripts/quickstart.sh --agent web"
    assert typed[0].strip() == quickstart
    assert typed[1].strip() == f"{quickstart} --trainer grpo"
    typed[:2] = [f"{quickstart} --iterations 1", f"{quickstart} --trainer grpo --iterations 3"]

    for command in [command for block in typed for command in commands_of(block)]:
        if " page " in command:  # until Ctrl+C
            with left_running(checkout, command, checkout / "page.log") as page:
                page.wait_for("http://127.0.0.1:", 60)
        else:
            type_in(checkout, command, timeout_s=3500)

    paths = RunPaths(checkout / "quickstart-web/run")
    first, last = [row["test/success_rate"] for row in reward_rows(paths).values()]
    assert last > first + 0.15
    streamed = RunPaths(checkout / "quickstart-web-grpo/run")
    rates = [row.get("test/success_rate") for row in reward_rows(streamed).values()]
    assert [rate is None for rate in rates] == [False, True, True, False]
    assert rates[3] > rates[0] + 0.05
    episodes = list(read_iteration(paths, "test", 1, TRAJECTORY))
    assert len(episodes) == 250
    assert all(len(step.seen.images) == 1 for episode in episodes for step in episode.steps)


def steps_of(paths: RunPaths) -> list[int]:
    return [line["update_step"] for line in metrics.read(paths.metrics) if "update_step" in line]


@pytest.mark.extended
def test_the_streaming_tutorial_trains_on_every_episode(checkout):
    page = checkout / "docs/tutorials/streaming.md"
    quickstart, steps, status, overlap = blocks(page, "bash", "console")
    start = "bash scripts/quickstart.sh --trainer grpo"
    assert quickstart.strip() == start
    with left_running(checkout, f"{start} --iterations 2", checkout / "quickstart.log") as running:
        run = checkout / "quickstart-grpo/run/runs/latest"
        running.wait_until((run / "pool.url").exists, 600)
        with left_running(checkout, status, checkout / "status.log") as watching:  # in another terminal
            watching.wait_until(lambda: watching.printed().count("  ready  ") >= 2, 600)
        printed = running.ends_well(1500)
    assert missing_lines(promised(page, start), printed) == []
    assert missing_lines(promised(page, "grep -h"), type_in(checkout, steps)) == []

    second = RunPaths(checkout / "quickstart-grpo/run2")
    with left_running(checkout, overlap, checkout / "overlap.log") as running:
        running.wait_until(lambda: len(steps_of(second)) >= 3, 600)
        os.killpg(running.process.pid, signal.SIGINT)  # Ctrl+C
        assert running.process.wait(60) == 130
    type_in(checkout, f"{overlap.rstrip()} --resume")
    assert steps_of(second) == list(range(1, 4 * 64 + 1))

    for log_path, iterations in (("run", 2), ("run2", 4)):
        paths = RunPaths(checkout / "quickstart-grpo" / log_path)
        for iteration in range(1, iterations + 1):
            assert len(list(read_iteration(paths, "train", iteration, TRAJECTORY))) == 2048
        assert paths.model_link.resolve().name == f"version-{iterations:06d}"


def test_a_second_quickstart_skips_finished_steps(tmp_path):
    checkout = copy_project(tmp_path)
    out = checkout / "quickstart"
    (out / "run").mkdir(parents=True)
    (out / "run/metrics.jsonl").write_text('{"iteration": 1, "test/success_rate": 0.5}\n')
    (out / ".both-done").touch()
    (out / ".settings").write_text("trainer=llamafactory iterations=4 seed=0 \n")

    done = subprocess.run(
        ["bash", "scripts/quickstart.sh"], cwd=checkout, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "0.500" in done.stdout
    assert not (out / "base-model").exists()


def test_a_misspelt_setting_is_refused_before_anything_is_made_for_it(tmp_path):
    checkout = copy_project(tmp_path)

    words = ["bash", "scripts/quickstart.sh", "trainer.learning_rat=1"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)

    assert done.returncode == 78
    assert "did you mean trainer.learning_rate?" in done.stderr
    assert [path.name for path in (checkout / "quickstart").iterdir()] == ["run"]
