"""The documentation as a site, built with the locked builder in an environment of its own."""

import subprocess
from pathlib import Path

import pytest

import rl_agent
from rl_agent.paths import PROJECT_ROOT

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]


def test_the_site_is_built_without_a_warning_and_has_every_public_name():
    uv = str(PROJECT_ROOT / ".venv" / "bin" / "uv")
    lock = PROJECT_ROOT / "requirements" / "site.txt"
    command = [uv, "run", "--no-project", "--with-requirements", lock, "docs/build_site.py"]
    build = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=250)

    assert build.returncode == 0, build.stdout + build.stderr
    reference = Path(PROJECT_ROOT, "build", "site", "docs", "reference", "python.html").read_text()
    assert [name for name in rl_agent.__all__ if f'id="rl_agent.{name}"' not in reference] == []
