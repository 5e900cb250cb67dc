"""The trainer as a process: it trains on a recorded run, survives being killed, and writes a model."""

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.types import EpisodeKey, Generation
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.settings import trainer_settings
from tests.support.small_disk import small_disk_at
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard

pytestmark = [pytest.mark.extended, pytest.mark.timeout(240)]

STEPS = 6
CHANGES = {
    # 14 groups arrive four at a time and two of them are uninformative: some wait for the next step.
    "batch": {"max_staleness": 99, "token_budget": 100},
    "loss": {"drop_uninformative": True, "kl_in": "loss"},
    "parallel": {"activation_checkpointing": 1.0},
}
GROUPS = 14
UNINFORMATIVE = (1, 6)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A folder with a tiny model and the episodes of a run, the siblings of neighbouring groups mixed."""
    folder = tmp_path_factory.mktemp("recorded")
    make_tiny_model(folder / "model")
    generator = np.random.default_rng(0)
    episodes = []
    for group in range(GROUPS):
        for attempt in range(4):
            response = tuple(int(t) for t in generator.integers(5, 60, generator.integers(2, 12)))
            generation = Generation(response, tuple(-4.0 for _ in response), "", "stop", 0, 0)
            step = dataclasses.replace(make_step(), prompt_token_ids=(9, 8, 7), generation=generation)
            reward = 1.0 if group in UNINFORMATIVE else float(generator.random())
            episode = make_trajectory(group, reward=reward, steps=(step,))
            key = EpisodeKey(f"task-{group}", 0, attempt)
            episodes.append((group // 3, attempt, dataclasses.replace(episode, key=key)))
    in_order = [episode for _, _, episode in sorted(episodes, key=lambda entry: entry[:2])]
    paths = RunPaths(folder)
    write_shard(paths.shard("train", 1), make_header(), *in_order)
    return folder


@pytest.fixture
def recorded_of_experts(recorded, tmp_path) -> Path:
    """The same episodes with a mixture of experts, which two ranks cannot divide evenly."""
    folder = tmp_path / "of_experts"
    shutil.copytree(recorded, folder, ignore=shutil.ignore_patterns("model"))
    make_tiny_model(folder / "model", experts=5)
    return folder


def write_settings(recorded: Path, output: Path) -> Path:
    output.mkdir(exist_ok=True)
    settings = trainer_settings(recorded / "model", output, groups=2, **CHANGES)
    path = output / "settings.json"
    path.write_text(settings.model_dump_json())
    return path


def start(settings: Path, *, ranks: int = 1) -> "list[subprocess.Popen[bytes]]":
    """One process a rank, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    recorded = Path(json.loads(settings.read_text())["model"]).parent
    base = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    base |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    processes = []
    for rank in range(ranks):
        environment = os.environ | base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (settings.parent / f"log-{rank}").open("ab") as log:
            words = ["-m", "tests.support.recorded_trainer", str(settings), str(recorded), "4", str(STEPS)]
            processes.append(
                subprocess.Popen([sys.executable, *words], cwd=PROJECT_ROOT, env=environment, stderr=log)
            )
    return processes


def finish(settings: Path, *, ranks: int = 1) -> dict[str, torch.Tensor]:
    """Run to the end; the weights of the model it wrote."""
    processes = start(settings, ranks=ranks)
    codes = [process.wait(120) for process in processes]
    assert codes == [0] * ranks, (settings.parent / "log-0").read_text()[-3000:]
    return load_file(settings.parent / "model" / "model.safetensors")


def steps_of(output: Path) -> list[int]:
    return [record["update_step"] for record in metrics.read(output / "metrics.jsonl")]


def wait_for_step(output: Path, step: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 90
    while step not in steps_of(output):
        assert process.poll() is None, f"ended with {process.returncode} before step {step}"
        assert time.monotonic() < deadline, f"no step {step} in 90 s"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def uninterrupted(recorded, tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    output = tmp_path_factory.mktemp("uninterrupted")
    return output, finish(write_settings(recorded, output))


def test_it_trains_step_by_step_and_writes_a_model_that_transformers_loads(recorded, uninterrupted):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    output, weights = uninterrupted
    records = list(metrics.read(output / "metrics.jsonl"))
    assert [record["update_step"] for record in records] == list(range(1, STEPS + 1))
    assert sum(record.get("trainer/rejected_groups/uninformative", 0) for record in records) == len(
        UNINFORMATIVE
    )
    assert all(record["trainer/episodes"] == 8 for record in records)
    assert [record["trainer/kl"] for record in records[:1]] == [0.0]
    assert records[-1]["trainer/kl"] > 0
    assert records[3]["trainer/staleness/3"] == 8
    before = load_file(recorded / "model" / "model.safetensors")
    assert before.keys() == weights.keys()
    moved = max(float((weights[name] - before[name]).abs().max()) for name in before)
    assert 0.3 * STEPS * 1e-3 < moved < 1.5 * STEPS * 1e-3  # Adam moves a weight by about lr a step
    model = AutoModelForCausalLM.from_pretrained(output / "model")
    assert torch.equal(model.state_dict()["model.norm.weight"], weights["model.norm.weight"])
    tokenizers = [AutoTokenizer.from_pretrained(f / "model") for f in (recorded, output)]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()


def test_killed_between_any_two_steps_it_ends_with_the_same_weights(recorded, uninterrupted, tmp_path):
    settings = write_settings(recorded, tmp_path)
    kills = (1, 2, 4)
    for step in kills:
        (process,) = start(settings)
        wait_for_step(tmp_path, step, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    resumed = finish(settings)
    _, expected = uninterrupted
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
    repeated = len(steps_of(tmp_path)) - STEPS
    assert repeated <= 2 * len(kills)  # its own step, and the one before whose checkpoint was being written


def test_a_preemption_notice_makes_it_save_what_it_reached(recorded, uninterrupted, tmp_path):
    settings = write_settings(recorded, tmp_path)
    (process,) = start(settings)
    wait_for_step(tmp_path, 2, process)
    process.terminate()
    assert process.wait(60) == 143
    reached = max(steps_of(tmp_path))
    assert (tmp_path / "checkpoints" / f"step-{reached}" / "state.json").is_file()
    resumed = finish(settings)
    assert steps_of(tmp_path) == list(range(1, STEPS + 1))  # nothing was done twice
    _, expected = uninterrupted
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


def test_one_of_two_ranks_killed_leaves_one_that_reaches_the_same_weights(recorded, uninterrupted, tmp_path):
    settings = write_settings(recorded, tmp_path)
    first, second = start(settings, ranks=2)
    wait_for_step(tmp_path, 3, first)
    second.send_signal(signal.SIGKILL)
    assert second.wait(30) == -signal.SIGKILL
    assert first.wait(60) != 0
    resumed = finish(settings)
    _, expected = uninterrupted
    for name, weight in expected.items():
        torch.testing.assert_close(resumed[name], weight, rtol=0, atol=2e-5, msg=name)


def test_expert_parallel_ranks_killed_leave_one_with_the_same_weights(recorded_of_experts, tmp_path):
    expected = finish(write_settings(recorded_of_experts, tmp_path / "uninterrupted"))
    settings = write_settings(recorded_of_experts, tmp_path / "killed")
    first, second = start(settings, ranks=2)
    wait_for_step(settings.parent, 3, first)
    for process in (first, second):
        process.kill()
        process.wait(30)
    resumed = finish(settings)
    before = load_file(recorded_of_experts / "model/model.safetensors")
    assert before.keys() == expected.keys() == resumed.keys()
    for name, weight in expected.items():
        assert not torch.equal(weight, before[name]), name
        torch.testing.assert_close(resumed[name], weight, rtol=0, atol=2e-5, msg=name)


def test_a_full_disk_gets_one_line_and_more_room_lets_it_go_on(recorded, uninterrupted, tmp_path):
    settings = write_settings(recorded, tmp_path)
    with small_disk_at(tmp_path / "checkpoints", "2m") as disk:
        (process,) = start(settings)
        assert process.wait(90) == 78
        last = (tmp_path / "log-0").read_text().splitlines()[-1]
        assert re.search(r"/checkpoints: no room for the checkpoint of step \d; make some", last), last
        assert steps_of(tmp_path)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        resumed = finish(settings)
    _, expected = uninterrupted
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"groups": 0}, "groups: Input should be greater"), ({"models": 1}, "models: Extra inputs")],
    ids=["value", "key"],
)
def test_wrong_settings_get_one_line_that_names_the_key(recorded, tmp_path, change, message):
    settings = write_settings(recorded, tmp_path)
    settings.write_text(json.dumps(json.loads(settings.read_text()) | change))
    (process,) = start(settings)
    assert process.wait(60) == 78
    assert message in (tmp_path / "log-0").read_text().splitlines()[-1]
