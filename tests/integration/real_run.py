"""The real `run.sh` with a real engine and a tiny model, as a process that can be watched and stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.system.processes import read_groups
from rl_agent.types import Split
from tests.integration.tiny_model import make_tiny_model

RUN_SH = PROJECT_ROOT / "scripts" / "run.sh"
LIMIT_S = 15
NUM_TASKS = 60
NUM_TEST_TASKS = 30
ENGINE_ARGS = (
    "--dtype float32 --enforce-eager --max-model-len 256 --max-num-seqs 4 --no-enable-chunked-prefill"
    " --kv-cache-memory-bytes 67108864 --distributed-executor-backend uni"
)
"""Settings of a worker's engine on a CPU: as small as that of a `Run`."""


class Run:
    """The command line of a run that collects for a minute or two, and what it left where."""

    def __init__(self, home: Path, model: Path | None = None):
        self.home, self.log = home, home / "log"
        self.paths = RunPaths(self.log)
        self.model = model = model or make_tiny_model(home / "model", hidden_size=128)
        (home / "data").mkdir()
        for split, count in (("train", NUM_TASKS), ("test", NUM_TEST_TASKS)):
            tasks = ({"task_id": str(n), "prompt": f"{n} + 1 =", "answer": str(n + 1), "env": "math"}
                     for n in range(count))  # fmt: skip
            lines = "".join(json.dumps(task | {"difficulty": "easy"}) + "\n" for task in tasks)
            (home / "data" / f"{split}.jsonl").write_text(lines)
        self.words = [
            "bash", str(RUN_SH), "--data-path", str(home / "data"), "--log-path", str(self.log),
            f"model_config.base_model={model}",
            f"engine.port={free_port()}", "engine.max_model_len=256",
            "engine.max_num_seqs=4", "engine.extra_args.kv-cache-memory-bytes=67108864",
            "env_config.server_size=4", "env_config.train_tasks_rollout_size=-1",
            "env_config.test_tasks_rollout_size=-1", "trainer.reward_threshold=0",
            "rollout.max_vllm_sessions=4", "rollout.min_vllm_sessions=4", "rollout.completion_threshold=1.0",
            "policy_config.max_new_tokens=64", "policy_config.temperature=1.0", "page.port=off",
        ]  # fmt: skip

    def change(self, values: Mapping[str, object]) -> None:
        """Give keys of the command line these values."""
        self.words = [word for word in self.words if word.partition("=")[0] not in values]
        self.words += [f"{key}={value}" for key, value in values.items()]

    def start(self, *more: str, **variables: str) -> subprocess.Popen:
        environ = {**os.environ, "TEST_MARK": str(self.home), "RL_AGENT_PYTHON": sys.executable,
                   "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled", **variables}  # fmt: skip
        with (self.home / "output").open("a") as output:
            return subprocess.Popen(
                [*self.words, *more], env=environ, stdout=output, stderr=output, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of a test that failed stays behind."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, **variables: str) -> list[int]:
        """Return the processes of this run that have all these variables."""
        marks = {f"{name}={value}".encode() for name, value in {"TEST_MARK": self.home, **variables}.items()}
        files = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and marks <= {*(entry / "environ").read_bytes().split(b"\0")}:
                    files.append(int(entry.name))
            except OSError:
                continue
        return files

    def leader(self, name: str) -> int:
        """The process that leads a group of the only node."""
        (folder,) = (self.log / "runs" / "latest" / "groups").glob("*/rank-0")
        (group,) = [group for group in read_groups(folder) if group.name == name]
        return group.leader.pid

    def finished(self, split: Split = "train") -> list[str]:
        """Keys of the episodes on the disk, in order."""
        path = self.paths.checkpoint_shard(split, 1)
        path = path if path.exists() else self.paths.shard(split, 1)
        # The name is taken an instant before the header is there.
        has_begun = path.exists() and path.stat().st_size > 0
        return [str(trajectory.key) for trajectory in read_shard(path)[1]] if has_begun else []

    def wait_for_episodes(self, process: subprocess.Popen, count: int, split: Split = "train") -> None:
        self.wait_until(lambda: len(self.finished(split)) >= count, process, 240)

    def wait_for_training(self, process: subprocess.Popen, logs: int) -> None:
        def is_training() -> bool:
            files = sorted(self.log.glob("runs/latest/logs/training-*.log"))
            return len(files) >= logs and "Running training" in files[-1].read_text()

        self.wait_until(is_training, process, 240)

    def wait_for_engine_start(self, process: subprocess.Popen, logs: int) -> None:
        def is_loading() -> bool:
            files = sorted(self.log.glob("runs/latest/logs/vllm-*.log"))
            return len(files) >= logs and "Initializing" in files[-1].read_text()

        self.wait_until(is_loading, process, 240)

    def wait_until(self, condition, process: subprocess.Popen, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert process.poll() is None, (self.home / "output").read_text()[-4000:]
            assert time.monotonic() < deadline, (self.home / "output").read_text()[-4000:]
            time.sleep(0.1)

    def seconds_until_gone(self, process: subprocess.Popen) -> float:
        started = time.monotonic()
        process.wait(2 * LIMIT_S)
        while self.processes():
            assert time.monotonic() < started + 2 * LIMIT_S
            time.sleep(0.05)
        return time.monotonic() - started
