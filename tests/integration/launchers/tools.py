"""Environments of tools whose pins do not go with this project's, made once for the tests that need them."""

import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from tests.integration.lacking import skip_lacking

INSTALL_TIMEOUT_S = 600


def interpreter_with(*requirements: str) -> Path:
    """The interpreter of an environment that has these packages. Skips the test where they cannot be had."""
    folder = Path(tempfile.gettempdir()) / f"rl-agent-tool-{'-'.join(requirements)}".replace("==", "-")
    python = folder / "bin" / "python"
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            words = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
            words.append([str(python), "-m", "pip", "install", "--quiet", *requirements])
            for line in words:
                done = subprocess.run(line, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
                if done.returncode:
                    skip_lacking(f"{requirements} cannot be installed: {done.stderr[-300:]}")
            (folder / "complete").touch()
    return python
