"""docs/how-to/train-a-vision-model.md, in an environment of its own that gets the page's packages.

The second part comes before the first, which has its tiny model in place of Qwen3-VL, and `--dry-run`.
"""

import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT, RunPaths
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/train-a-vision-model.md"
TINY = "model_config.base_model=$HOME/vision/tiny engine.max_model_len=512 policy_config.max_new_tokens=16"


def give_environment(checkout: Path) -> None:
    """A `.venv` that finds the packages of the real one, and takes more without changing that."""
    folder = checkout / ".venv"
    folder.unlink()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (shared,) = site.getsitepackages()
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_a_tiny_vision_model_is_served_trained_and_served_again(tmp_path):
    port = f"engine.port={free_port()}"
    instead = {
        "{1..64}": "{1..8}",
        "--eval-interval 6": f"--eval-interval 6 --dry-run {port} {TINY}",
        "--eval-interval 2": f"--eval-interval 2 {port}",
    }
    reader = Reader(PAGE, tmp_path, instead)
    give_environment(reader.checkout)
    reader.environment["PATH"] = f"{reader.checkout / '.venv' / 'bin'}:{reader.environment['PATH']}"
    shutil.copytree(PROJECT_ROOT / "tests", reader.checkout / "tests")
    tasks, plan = reader.commands("mkdir -p ~/vision")
    install, model, run = reader.commands(".venv/bin/pip install")

    reader.types(tasks)
    assert len((reader.home / "vision/train.jsonl").read_text().splitlines()) == 8
    reader.types(install, timeout_s=300)
    reader.types(model, timeout_s=120)
    reader.types(plan, timeout_s=120)
    reader.types(run, timeout_s=1500)
    paths = RunPaths(reader.home / "vision/tiny-run")
    assert paths.model_link.resolve().name == "version-000002"
