"""Runs the real `run.sh` with the verbs that need a model replaced (rbenv's trick: a stub in front)."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest

from rl_agent.cli.__main__ import call
from rl_agent.paths import PROJECT_ROOT
from tests.marked_processes import processes_with
from tests.support.cluster.simulated_cluster import FONTS
from tests.support.ports import quiet_port
from tests.support.tiny_chat import save_tiny_model_folder

RUN_SH = PROJECT_ROOT / "scripts" / "run.sh"
FAKE_VERBS = Path(__file__).with_name("fake_verbs.py")

STUB = f"""#!/usr/bin/env bash
if [[ $1 == -P && $2 == -m && $3 == rl_agent.cli ]]; then
  case $4 in
    wandb-sync)
      echo wandb-sync >>"$FAKE_CALLS"
      exec sleep 600 ;;
    node | serve | join-pool | train | stream-train)
      exec {sys.executable!r} -P -m tests.shell.fake_verbs "${{@:4}}" ;;
  esac
fi
exec {sys.executable!r} "$@"
"""


@dataclass
class Harness:
    """A data path, a log path, and the command line of `run.sh` over them."""

    home: Path
    port: int
    started: list[subprocess.Popen] = field(default_factory=list)

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def calls(self) -> list[str]:
        path = self.home / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def verbs(self) -> list[str]:
        verbs = [call.split()[0] for call in self.calls]
        return [verb for verb in verbs if verb not in ("wandb-sync", "begun")]

    def argv(self, *words: str) -> list[str]:
        paths = ["--data-path", str(self.data), "--log-path", str(self.log)]
        defaults: dict[str, object] = {"engine.port": self.port, "page.port": "off"}
        given = {word.partition("=")[0] for word in words}
        defaults["model_config.base_model"] = self.home / "model"
        rest = [f"{key}={value}" for key, value in defaults.items() if key not in given]
        return ["bash", str(RUN_SH), *paths, *words, *rest]

    def env(self, **more: str) -> dict[str, str]:
        """Nothing of the caller's environment but PATH and a cache, so that no variable changes a test."""
        ours = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "MPLCONFIGDIR": FONTS,
            "RL_AGENT_PYTHON": str(self.home / "python"),
            "FAKE_CALLS": str(self.home / "calls"),
            "TEST_MARK": str(self.home),
            "CUDA_VISIBLE_DEVICES": "",
        }
        return ours | more

    def run(self, *words: str, timeout: float = 100, **more: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.argv(*words), env=self.env(**more), capture_output=True, text=True, timeout=timeout
        )

    def plan(self, *words: str, **more: str) -> subprocess.CompletedProcess:
        """Check the words in this process, as `run.sh` has them checked before it starts anything."""
        argv = ["plan", *self.argv(*words)[2:]]
        out, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.env(**more), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            status = call(argv).status
        return subprocess.CompletedProcess(argv, status, out.getvalue(), errors.getvalue())

    def start(self, *words: str, **more: str) -> subprocess.Popen:
        """Start the driver in a session of its own, as a terminal would."""
        (self.home / "stderr").write_text("")
        errors = (self.home / "stderr").open("a")  # nodes that share it overwrite nothing of each other
        process = subprocess.Popen(
            self.argv(*words), env=self.env(**more), stderr=errors, stdout=errors, start_new_session=True
        )
        errors.close()
        self.started.append(process)
        return process

    @property
    def stderr(self) -> str:
        return (self.home / "stderr").read_text()

    def processes(self) -> dict[int, str]:
        """Living processes that this harness started, found by a variable they inherited."""
        return processes_with(f"TEST_MARK={self.home}")

    def wait_for_call(self, verb: str, count: int = 1, timeout: float = 90) -> None:
        wait_until(lambda: sum(call.split()[0] == verb for call in self.calls) >= count, timeout, self)


def wait_until(condition, timeout: float = 90, harness: "Harness | None" = None) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, harness.stderr if harness else "deadline"
        time.sleep(0.02)


@pytest.fixture
def harness(tmp_path):
    for name in ("data", "model"):
        (tmp_path / name).mkdir()
    task = '{"task_id": "a", "prompt": "1 + 1 =", "answer": "2", "difficulty": "easy", "env": "math"}\n'
    for split in ("train", "test"):
        (tmp_path / "data" / f"{split}.jsonl").write_text(task)
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3"}')
    save_tiny_model_folder(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    new_harness = Harness(tmp_path, quiet_port())
    yield new_harness
    for process in new_harness.started:
        if process.poll() is None:
            process.terminate()
            process.wait(20)
    for pid in new_harness.processes():
        os.kill(pid, signal.SIGKILL)
