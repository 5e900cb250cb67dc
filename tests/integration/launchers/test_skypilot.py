"""The task files and the provider of SkyPilot, with a real SkyPilot that has no cloud."""

import json
import os
import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.scale.catalog import connected, settings_model
from rl_agent.pool.scale.records import EngineKind, ProviderError
from tests.integration.launchers.tools import interpreter_with

FILES = PROJECT_ROOT / "scripts" / "skypilot"
SPOT = EngineKind("spot", 2.5, 0, 4, 60.0)
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
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["spot"] is is_spot
    assert set(found["gpus"]) == {"H100"}
    for script in ("setup", "run"):
        checked = subprocess.run(["bash", "-n"], input=found[script], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


async def test_without_a_cloud_a_start_fails_with_a_line_and_there_is_no_machine(
    skypilot, monkeypatch, tmp_path
):
    """Of a machine without a GPU: for those SkyPilot downloads a list of what each cloud calls them."""
    task = tmp_path / "task.yaml"
    task.write_text("resources: {cpus: 2}\nrun: sleep 1\n")
    monkeypatch.setenv("RL_AGENT_POOL_TOKEN", "a token of at least sixteen bytes")
    model = settings_model("skypilot")
    more = {"secrets_from_environment": ["RL_AGENT_POOL_TOKEN"]}
    more |= {
        "kind_resources": {"spot": {"use_spot": False}},
        "envs": {"RL_AGENT_WORKER": "--capacity 8"},
    }
    settings = model(manager="http://127.0.0.1:5000", fleet="test", task=str(task), **more)
    async with connected("skypilot", settings.model_dump(), str(skypilot)) as provider:
        assert await provider.machines() == []
        with pytest.raises(ProviderError, match="could not launch test-1"):
            await provider.start("test-1", SPOT)
        assert await provider.machines() == []
        await provider.stop("test-1")


def test_the_provider_needs_nothing_of_this_project_s_environment(skypilot):
    module = "rl_agent.pool.scale.providers.skypilot"
    words = [str(skypilot), "-c", f"import {module}, sys; print('pydantic' in sys.modules)"]
    environ = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
    assert str(skypilot) != sys.executable
