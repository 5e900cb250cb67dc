"""A real web rollout to be attacked: `run.sh`, pages in Chromium, and an engine that costs nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rl_agent.env.guard import descendants, has_word
from rl_agent.paths import PROJECT_ROOT
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.system.processes import ProcessId
from rl_agent.types import Status, Trajectory
from tests.integration.real_run import Run
from tests.integration.training.tiny_vision_model import MAX_LENGTH
from tests.integration.training.vision_packages import vision_environment
from tests.support.ports import quiet_port

EPISODES, STEPS, ATTEMPTS = 150, 4, 5
FROZEN_S = 20.0
ENGINE = PROJECT_ROOT / "benchmarks" / "rollout" / "instant_engine.py"
ROLLOUT = ("--debug-mode", "--rl-phase", "rollout", "--rollout-split", "train-only", "--max-iterations", "1")
PAGES = ("click-button", "enter-text", "login-user", "click-test")


class WebRun(Run):
    """Episodes of an agent whose words are random; each is answered by a screenshot."""

    def __init__(self, home: Path, model: Path, variables: dict[str, str]) -> None:
        super().__init__(home, model)
        self._variables = variables
        lines = (
            {"task_id": str(n), "prompt": "Do it.", "env": "web", "difficulty": "easy", "seed": n}
            | {"miniwob": PAGES[n % len(PAGES)]}
            for n in range(EPISODES)
        )
        (home / "data" / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        port = quiet_port()
        engine = [sys.executable, str(ENGINE), str(port), str(model)]
        self.engine = subprocess.Popen(engine)
        wait_until_open(port)
        values: dict[str, object] = {
            "engine.url": f"http://127.0.0.1:{port}",
            "engine.max_model_len": MAX_LENGTH,
            "policy_config.max_new_tokens": 16,
            "context.max_images": 2,
            "context.max_rounds": 1,
            "env_config.server_size": 4,
            "env_config.workers": 1,
            "env_config.worker_timeout_s": 5,
            "env_config.attempts": ATTEMPTS,
            "env_config.train_difficulty_max_steps": f"{{easy: {STEPS}}}",
        }
        self.change(values)

    def __exit__(self, *_: object) -> None:
        self.engine.kill()
        self.engine.wait()
        with suppress(ProcessLookupError):  # one that has ended meanwhile
            super().__exit__()

    def begin(self, *more: str) -> subprocess.Popen[bytes]:
        return self.start(*ROLLOUT, *more, **self._variables)

    def wait_for_more(self, process: subprocess.Popen[bytes], count: int = 3) -> None:
        self.wait_for_episodes(process, len(self.finished()) + count)

    def end(self, process: subprocess.Popen[bytes]) -> list[Trajectory]:
        """Wait for the end; every episode is recorded once, each lost attempt with its reason."""
        assert process.wait(500) == 0, self.output[-4000:]
        self.seconds_until_gone(process)
        ended = list(read_shard(self.paths.shard("train", 1))[1])
        assert sorted(str(each.key) for each in ended) == sorted(f"{n}:0:0" for n in range(EPISODES))
        assert {each.status for each in ended} == {Status.COMPLETED}, self.output[-4000:]
        assert all(lost.failure.message for each in ended for lost in each.lost_attempts)
        assert all(step.observation.images for each in ended for step in each.steps)
        assert f"{EPISODES} episodes" in self.output
        assert set(re.findall(r"failed=(\d+)", self.output)) <= {"0"}
        return ended

    def below_workers(self, word: str) -> list[ProcessId]:
        """The processes of browsers that have a word in their command line."""
        workers = [pid for pid in self.processes() if has_word(pid, b"remote.worker")]
        processes = {each for worker in workers for each in below(worker, word)}
        assert processes
        return list(processes)

    @property
    def output(self) -> str:
        return (self.home / "output").read_text()


def wait_until_open(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def make_model(folder: Path, variables: dict[str, str]) -> Path:
    subprocess.run(
        [sys.executable, "-m", "tests.integration.training.tiny_vision_model", str(folder)],
        cwd=PROJECT_ROOT,
        env=os.environ | variables,
        check=True,
        capture_output=True,
        timeout=300,
    )
    return folder


def vision_variables(folder: Path) -> dict[str, str]:
    """Variables of a process that runs vision models, with this checkout first."""
    variables = vision_environment(folder)
    paths = [variables.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    return variables | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def below(pid: int, word: str) -> list[ProcessId]:
    """The processes below one that have a word in their command line."""
    return [ProcessId.of(child) for child in descendants(pid) if has_word(child, word.encode())]


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Stop processes for `FROZEN_S`, whatever becomes of them meanwhile."""
    assert pids
    stopped = [ProcessId.of(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        yield
        time.sleep(max(0.0, FROZEN_S - (time.monotonic() - began)))
    finally:
        for process in stopped:
            if process.is_running:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
