"""The first tutorial, typed as it stands: its commands end well, and the model gets better at its task."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rl_agent.monitor.report import reward_rows
from rl_agent.paths import RunPaths

ROOT = Path(__file__).resolve().parents[2]
TREE = ("scripts", "configs", "data", "docs", "rl_agent", "requirements", "setup.py", "pyproject.toml")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


def commands(page: Path) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def checkout(tmp_path):
    """A copy of the project that shares the environment, so that nothing is written into the real one."""
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
        else:
            shutil.copy2(source, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    return tmp_path


def test_a_newcomer_who_types_the_tutorial_sees_the_model_get_better(checkout):
    blocks = commands(checkout / "docs/tutorials/first-run.md")
    quickstart = "bash scripts/quickstart.sh"
    assert blocks[0].strip() == quickstart
    blocks[0] = f"{quickstart} --iterations 2"  # two of the four iterations show it

    for block in blocks:
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            ["bash", "-euc", block],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1500,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    rows = reward_rows(RunPaths(checkout / "quickstart/run"))
    accuracy = [row["test/success_rate"] for row in rows.values()]
    assert len(accuracy) == 3
    assert accuracy[-1] > accuracy[0] + 0.1
    assert (checkout / "quickstart/run/reward.png").exists()


def test_a_second_quickstart_skips_what_is_done(checkout):
    out = checkout / "quickstart"
    (out / "run").mkdir(parents=True)
    (out / "run/metrics.jsonl").write_text('{"iteration": 1, "test/success_rate": 0.5}\n')
    (out / ".rollout-done").touch()
    (out / ".settings").write_text("iterations=4 seed=0 \n")

    done = subprocess.run(
        ["bash", "scripts/quickstart.sh"], cwd=checkout, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "0.500" in done.stdout
    assert not (out / "base-model").exists()
