"""The wheel of `pip install rl-agent` works without the repository and the libraries of its extras."""

import subprocess

import pytest

pytestmark = pytest.mark.usefixtures("outside")


def run(installed, *words, status=0):
    done = subprocess.run(
        [installed / words[0], *words[1:]], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == status, done.stderr
    return done


def test_the_wheel_is_imported_and_lists_its_verbs(installed):
    place = run(installed, "python", "-c", "import rl_agent; print(rl_agent.__file__)").stdout
    assert place.startswith(str(installed.parent))
    verbs = run(installed, "rl-agent", "--help").stdout
    assert {"run", "manager", "join-pool", "what-if"} <= {
        line.split()[0] for line in verbs.splitlines() if line
    }


def test_what_if_finds_the_configuration_in_the_wheel(installed):
    done = run(installed, "rl-agent", "what-if", "iterations=1", "prompts=4", "group_size=2")
    assert "static" in done.stdout


def test_run_plans_a_rollout_with_the_scripts_of_the_wheel(installed, outside):
    (outside / "train.jsonl").write_text(
        '{"task_id": "1", "prompt": "1 + 1", "answer": "2", "env": "r.py:score"}\n'
    )
    (outside / "r.py").write_text("def score(completion, answer):\n    return answer in completion\n")
    words = [
        "--data-path",
        ".",
        "--log-path",
        "log",
        "--rl-phase",
        "rollout",
        "--rollout-split",
        "train-only",
    ]
    done = run(installed, "rl-agent", "run", *words, status=78)
    assert "needs vllm" in done.stderr and "pip install 'rl-agent[gpu]'" in done.stderr


def test_a_library_of_an_extra_is_named_in_one_line(installed, outside):
    trajectories = outside / "log" / "train_trajectories"
    trajectories.mkdir(parents=True)
    (trajectories / "train_trajectories.jsonl.iteration1").touch()
    words = ["--log-path", "log", "--format", "parquet", "--out", "out.parquet"]
    done = run(installed, "rl-agent", "trajectories", "export", *words, status=78)
    assert done.stderr == "trajectories: pandas is not installed; pip install 'rl-agent[page]' brings it\n"
