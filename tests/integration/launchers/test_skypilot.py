"""A real SkyPilot that has no cloud takes the task files."""

import json
import os
import subprocess

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.integration.launchers.tools import interpreter_with

FILES = PROJECT_ROOT / "scripts" / "skypilot"
READ = """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
[found] = task.resources
print(json.dumps({"spot": found.use_spot, "gpus": found.accelerators, "setup": task.setup, "run": task.run}))
"""

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def skypilot(tmp_path_factory):
    """The interpreter, and a home of its own in which its API server lives for these tests."""
    python = interpreter_with("skypilot==0.14.1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield python
        words = [str(python.with_name("sky")), "api", "stop"]
        subprocess.run(words, env=os.environ, capture_output=True, timeout=60)


@pytest.mark.parametrize(("file", "is_spot"), [("worker.yaml", True), ("trainer.yaml", False)])
def test_skypilot_takes_the_task_file_and_bash_its_scripts(skypilot, file, is_spot):
    words = [str(skypilot), "-c", READ, str(FILES / file)]
    done = subprocess.run(words, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tasks = json.loads(done.stdout.splitlines()[-1])
    assert tasks["spot"] is is_spot
    assert set(tasks["gpus"]) == {"H100"}
    for script in ("setup", "run"):
        checked = subprocess.run(["bash", "-n"], input=tasks[script], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
