"""A streaming trainer as a process, the rollout that feeds it, the manager that it tells of its versions."""

import dataclasses
import http.server
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.pool.settings import load_weights
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.manifest import ManifestEntry, write_manifest
from rl_agent.rollout.trajectories.shard import start_shard
from rl_agent.system.files import write_whole
from rl_agent.trainer.grpo.checkpoint.states import StreamProgress
from rl_agent.trainer.grpo.settings import TrainerSettings
from rl_agent.types import EpisodeKey, Generation, Trajectory
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.settings import trainer_settings
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory

GROUP_SIZE = 4
GROUPS = 4
PRICE_PER_HOUR = 36.0
VOCABULARY = 271
UNIFORM = -math.log(VOCABULARY)
"""Logprob of any token by `make_uniform_model`: the first step compares the engine's with the trainer's."""
WEIGHTS = (
    *("host=127.0.0.1", "keep_versions=2", "piece_mib=1", "threads=1", "delta=always"),
    *(
        "link_gbit_per_s=1",
        "max_connections=8",
    ),
)


def make_uniform_model(folder: Path, head: float = 0.0, **changes: Any) -> Path:
    """Write a tiny model by which every token is as likely as any other; `head` of the output layer is left.

    Without any of it no gradient reaches the layers before.
    """
    make_tiny_model(folder, **changes)
    tensors = load_file(folder / "model.safetensors")
    assert len(tensors["lm_head.weight"]) == VOCABULARY
    tensors["lm_head.weight"].mul_(head)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def stream_settings(log_path: Path, model: Path, manager: str | None, **changes: Any) -> TrainerSettings:
    stream = {
        "log_path": log_path, "run_id": "run", "group_size": GROUP_SIZE, "streamed": True,
        "first_iteration": 1, "last_iteration": None, "start": None, "served": "",
        "engines_model": "", "engines_version": 0, "next_version": 1, "published": {}, "manager": manager,
        "manager_file": None,
        "manager_token_env_var": "UNSET", "manager_tls_ca": None,
        "silence_timeout_s": 120.0, "known_timeout_s": 60.0, "store": log_path / "weights",
        "progress": log_path / "progress.json", "keep_versions": 2, "weights": load_weights(WEIGHTS),
        "sharing": None,
    }  # fmt: skip
    output = RunPaths(log_path).streaming
    settings = trainer_settings(model, output, groups=GROUPS, mini_batches=2)
    values = settings.model_dump() | {"stream": stream | changes}
    return TrainerSettings.model_validate(
        values | {"metrics": RunPaths(log_path).metrics, "price_per_hour": PRICE_PER_HOUR}
    )


class Rollout:
    """Writes what a rollout would, as fast or slow as a test wants."""

    def __init__(self, log_path: Path) -> None:
        self._paths = RunPaths(log_path)
        self._generator = np.random.default_rng(0)

    def begin(self, iteration: int) -> Path:
        growing = self._paths.checkpoint_shard("train", iteration)
        start_shard(growing, make_header(iteration))
        return growing

    def group(self, growing: Path, iteration: int, group: int, *, version: int) -> None:
        lines = [to_line(self._episode(iteration, group, n, version)) for n in range(GROUP_SIZE)]
        with growing.open("ab") as file:
            file.write(b"".join(lines))

    def end(self, growing: Path, iteration: int) -> None:
        name = growing.name.removesuffix(".checkpoint")
        write_manifest(
            self._paths, "train", iteration, [ManifestEntry(file=name, rank=0, bytes=None, episodes=0)]
        )
        growing.rename(growing.with_name(name))

    def whole(self, iteration: int, *, version: int) -> None:
        growing = self.begin(iteration)
        for group in range(GROUPS):
            self.group(growing, iteration, group, version=version)
        self.end(growing, iteration)

    def _episode(self, iteration: int, group: int, attempt: int, version: int) -> Trajectory:
        generator = self._generator
        response = tuple(int(t) for t in generator.integers(5, 60, generator.integers(2, 9)))
        generation = Generation(response, tuple(UNIFORM for _ in response), "", "stop", version, version)
        step = dataclasses.replace(make_step(), prompt_token_ids=(9, 8, 7), generation=generation)
        episode = make_trajectory(group, iteration=iteration, reward=float(generator.random()), steps=(step,))
        key = EpisodeKey(f"task-{group}", 0, attempt)
        return dataclasses.replace(episode, key=key, weight_version_min=version, weight_version_max=version)


class Manager:
    """Takes announcements, and answers as told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.heard: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        """Seconds that the trainer waited in each."""
        self.status = 200
        self.began = time.monotonic()

    def pool(self) -> dict[str, Any]:
        """Its /status, of two engines that are idle for half their time and cost 3.60 dollars per hour."""
        up_s = 2 * (time.monotonic() - self.began)
        sums = {"up_s": up_s, "idle_s": up_s / 2, "recomputed_tokens": 7, "prefilled_again_tokens": 9}
        told = self.heard[-1] if self.heard else {"weight_version": 0, "digest": None}
        serves = {"weight_version": told["weight_version"], "weights_digest": told["digest"]}
        sums |= {"finishing_s": up_s / 4, "cost": up_s * 1e-3}
        wanted = {"counts": {"spot": 3}, "reason": "3 wanted: the trainer waited"}
        return serves | {"engines": 2 * [{"state": "ready"}], "totals": sums, "wanted": wanted}

    def newest(self) -> dict[str, Any]:
        return self.heard[-1]

    def wait_for(self, version: int, timeout_s: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while not self.heard or self.newest()["weight_version"] < version:
            assert time.monotonic() < deadline, f"version {version} was not announced"
            time.sleep(0.02)
        return self.newest()


@contextmanager
def manager() -> Iterator[Manager]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/runs/run/step":
                address.steps.append(body)
                self._answer({})
                return
            if self.path == "/publishers":
                self._answer({"publisher": 7})
                return
            if address.status == 200:
                address.heard.append(body)
            self._answer({"weight_version": body["weight_version"], "is_accepted": True})

        def do_GET(self) -> None:
            self._answer(address.pool())

        def _answer(self, content: dict[str, Any]) -> None:
            answer = json.dumps(content).encode()
            self.send_response(address.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = Manager(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield address
    server.shutdown()
    server.server_close()
    thread.join()


class Trainer:
    """One rank or several, as the run would start them."""

    def __init__(self, settings: TrainerSettings, *, ranks: int = 1) -> None:
        log_path = settings.output.parent
        log_path.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.log = log_path / "log"
        file = log_path / "settings.json"
        write_whole(file, settings.model_dump_json())
        port = 0 if ranks == 1 else free_port("127.0.0.1")  # alone it needs to be found by nobody
        base = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        base |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.processes = []
        for rank in range(ranks):
            environment = os.environ | base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            argv = [sys.executable, "-m", "rl_agent.trainer.grpo.worker", str(file)]
            with self.log.open("ab") as log:
                self.processes.append(subprocess.Popen(argv, cwd=PROJECT_ROOT, env=environment, stderr=log))

    def wait_for_iteration(self, iteration: int, timeout_s: float = 120) -> StreamProgress:
        assert self.settings.stream is not None
        deadline = time.monotonic() + timeout_s
        while True:
            progress = StreamProgress.read(self.settings.stream.progress)
            if (
                progress is not None
                and progress.iteration >= iteration
                and progress.pid == self.processes[0].pid
            ):
                return progress
            codes = [process.poll() for process in self.processes]
            assert codes == [None] * len(codes), f"ended with {codes}: {self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"no iteration {iteration}: {self.log.read_text()[-3000:]}"
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> list[int]:
        for process in self.processes:
            process.send_signal(number)
        return [process.wait(60) for process in self.processes]
