"""The wheel of this tree, installed into an environment of its own, outside the repository."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.support.rollout_setup import simulated_engine
from tests.support.tiny_chat import save_tiny_model_folder

OF_EXTRAS = (
    "datasets",
    "duckdb",
    "gymnasium",
    "jsonschema_rs",
    "math_verify",
    "matplotlib",
    "mcp",
    "openai",
    "pandas",
    "peft",
    "playwright",
    "pyarrow",
    "reasoning_gym",
    "scipy",
    "sympy",
    "torch",
    "transformers",
    "vllm",
    "wandb",
)
"""Libraries that `pip install rl-agent` does not bring."""


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Return the `bin` of an environment that has the wheel and, of the others, what collecting needs."""
    folder = tmp_path_factory.mktemp("installed")
    source, environment = folder / "source", folder / "environment"
    for name in ("rl_agent", "configs", "scripts", "data/sites"):
        shutil.copytree(
            PROJECT_ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(PROJECT_ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run(wheel, check=True, timeout=100)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=100)
    (wheel_file,) = folder.glob("*.whl")
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel_file], check=True, timeout=100)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    refused = f"import sys\nsys.modules.update(dict.fromkeys({OF_EXTRAS!r}))\n"
    (packages / "sitecustomize.py").write_text(refused)
    return environment / "bin"


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Path:
    """Make an empty folder the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


@pytest.fixture
def engine(tmp_path):
    """Return the address of a simulated engine, which has a tokenizer."""
    save_tiny_model_folder(tmp_path / "model")
    with simulated_engine(tmp_path) as url:
        yield url
