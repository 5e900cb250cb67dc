"""Packages of vision models on a CPU, installed beside the environment for a test, not into it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from rl_agent.paths import PROJECT_ROOT
from tests.integration.lacking import skip_lacking

PACKAGES = ("torchvision==0.28.0", "./requirements/placeholders/torchvision_operators")
"""Versions from requirements/cpu-overrides.txt."""


def vision_environment(folder: Path) -> dict[str, str]:
    """Variables with which Python finds torchvision. Skips the test where it can be had from nowhere."""
    if importlib.util.find_spec("torchvision"):
        return {}
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        *PACKAGES,
    ]
    done = subprocess.run(argv, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode:
        skip_lacking(f"torchvision cannot be installed: {done.stderr[-300:]}")
    # A .pth file counts in an environment only; here the same is done at Python's start.
    (folder / "sitecustomize.py").write_text("import torchvision_operators\n")
    return {"PYTHONPATH": str(folder)}
