"""The real wandb library and a server that fails: each line arrives at its step, and the recorder ends.

RL_AGENT_WANDB_FAULTS=20 makes so many runs with faults drawn from a seed, from RL_AGENT_WANDB_FAULTS_FROM on.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from tests.support.rollout_setup import make_plan
from tests.support.wandb_server import KEY, WandbServer

pytestmark = [pytest.mark.extended, pytest.mark.chaos, pytest.mark.timeout(300)]

FIRST = int(os.environ.get("RL_AGENT_WANDB_FAULTS_FROM", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("RL_AGENT_WANDB_FAULTS", "1")))
FAULTS = (
    "",
    "status 401",
    "status 404",
    "status 409",
    "status 429",
    "status 500",
    "slow 1",
    "slow 40",
    "cut",
    "torn",
)
ACTIONS = ("fault", "fault", "kill", "kill", "kill wandb", "stop", "down")
GRACE_S = 40.0
"""Seconds that run.sh gives it."""


class Recording:
    """A run whose lines come one by one, and its recorder."""

    def __init__(self, home, server: WandbServer) -> None:
        self.home, self.server = home, server
        model = home / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        self.plan = make_plan(home, "wandb.mode=online", engine_url="http://127.0.0.1:1", model=model)
        self.plan.paths.run_dir(self.plan.run_id).mkdir(parents=True)
        self.plan_file = home / "plan.json"
        self.plan.write(self.plan_file)
        self.lines = 0
        self.process: subprocess.Popen | None = None
        self.output = (home / "output").open("w")

    def start(self) -> None:
        environ = {
            **os.environ,
            "WANDB_BASE_URL": self.server.url,
            "WANDB_API_KEY": KEY,
            "HOME": str(self.home),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_agent.cli", "wandb-sync", "--plan", str(self.plan_file)],
            cwd=PROJECT_ROOT, env=environ, stdout=self.output, stderr=self.output, start_new_session=True,
        )  # fmt: skip

    def add(self, count: int) -> None:
        for _ in range(count):
            self.lines += 1
            metrics.append(
                self.plan.paths.metrics, {"time": 0.0, "iteration": self.lines, "reward": self.lines / 8}
            )

    def kill(self, *, only_wandb: bool = False) -> None:
        leader = psutil.Process(self.process.pid)
        for victim in leader.children(recursive=True):
            victim.kill()
        if not only_wandb:
            leader.kill()
            self.process.wait(10)

    def stop(self) -> None:
        """End it as run.sh does: within the grace, with a status of its own."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(GRACE_S) in (0, -signal.SIGTERM), self.log  # -TERM: it had only just begun

    @property
    def log(self) -> str:
        return (self.home / "output").read_text()

    @property
    def is_complete(self) -> bool:
        """Each line at its step; twice is no harm, as when a kill overtakes an upload that is on its way."""
        at = self.server.values(self.plan.run_id, "_step")
        told = self.server.values(self.plan.run_id, "iteration")
        return {*zip(at, told, strict=True)} == {(line, line + 1) for line in range(self.lines)}


@contextmanager
def recording(home, server):
    new_recording = Recording(home, server)
    try:
        yield new_recording
    finally:
        if new_recording.process is not None and new_recording.process.poll() is None:
            new_recording.kill()
        new_recording.output.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_line_reaches_its_step_whatever_server_and_recorder_suffer(seed, tmp_path):
    rng = random.Random(seed)
    happened = []
    with WandbServer() as server, recording(tmp_path, server) as run:
        server.fault = rng.choice(FAULTS)
        run.add(3)
        run.start()
        for _ in range(rng.randint(2, 5)):
            time.sleep(rng.uniform(0.5, 6))
            run.add(rng.randint(0, 4))
            action = rng.choice(ACTIONS)
            if action == "fault":
                server.fault = rng.choice(FAULTS)
            elif action == "down":
                server.fault = "cut"
            elif action == "kill wandb":
                run.kill(only_wandb=True)
            else:
                run.kill() if action == "kill" else run.stop()
                run.start()
            happened.append(f"{action} {server.fault}")
        print(f"seed {seed}: {happened}", flush=True)
        run.stop()
        server.fault = ""
        run.add(1)
        run.start()
        time.sleep(6)
        run.add(1)
        run.stop()
        print(f"seed {seed}: {run.lines} lines, wandb has {server.values('run', 'iteration')}")
        assert run.is_complete, run.log[-3000:]
    lines = [json.loads(line) for line in run.plan.paths.metrics.read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(1, run.lines + 1))


def test_a_key_that_is_refused_leaves_a_record_that_wandb_sync_can_upload(tmp_path):
    with WandbServer() as server, recording(tmp_path, server) as run:
        server.fault = "status 401"
        run.add(3)
        run.start()
        deadline = time.monotonic() + 60
        while "retrying in" not in run.log and time.monotonic() < deadline:
            time.sleep(0.1)
        run.stop()
        assert "returned error 401" in run.log and "upload them with: wandb sync" in run.log
        (folder,) = (run.plan.config.log_path / "wandb").glob("offline-run-*")
        server.fault = ""
        environ = {**os.environ, "WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY, "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "wandb", "sync", str(folder)],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert run.is_complete, (done.stdout + done.stderr)[-2000:]
