"""One real vLLM server on the CPU for the whole session, with a tiny random Qwen3."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.config.plan import Plan
from rl_agent.engine.server import server_argv, server_environment
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.integration.weights.fingerprints import EXTENSION

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 15


ONE_SERVER = ("tests/integration/runs/one_server/", "tests/integration/library/")


class SharedServerScheduling(LoadFileScheduling):
    """Gives a worker whole files, and those that use `vllm_server` or `installed` to one worker, which makes
    each once.
    """

    def _split_scope(self, nodeid: str) -> str:
        return ONE_SERVER[0] if nodeid.startswith(ONE_SERVER) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log) -> LoadFileScheduling | None:
    return SharedServerScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running server; `plan` is of a run that wants exactly this one."""

    plan: Plan
    model: Path
    url: str


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("vllm")
    model = make_tiny_model(folder / "model", hidden_size=128)  # vLLM on a CPU wants heads of at least 32
    with running_server(model, folder / "log", max_num_seqs=32) as plan:
        yield VllmServer(plan, model, plan.config.engine.base_url)


@contextmanager
def running_server(model: Path, log_path: Path, *words: str, max_num_seqs: int) -> Iterator[Plan]:
    """A server that can take weights while it runs; the plan is of a run that wants exactly this one."""
    plan = make_plan(
        log_path,
        model,
        f"engine.port={free_port()}",
        "engine.max_model_len=256",
        f"engine.max_num_seqs={max_num_seqs}",
        "engine.extra_args.kv-cache-memory-bytes=67108864",
        f"engine.extra_args.worker-extension-cls={EXTENSION}",
        "weights=inplace",
        *words,
    )
    with started_server(plan):
        yield plan


@contextmanager
def started_server(plan: Plan) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of the plan's engine, which is ready; it ends with the block."""
    log = plan.config.log_path / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            server_argv(plan),
            env=server_environment(plan.config, os.environ),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(process, plan.config.engine.base_url, log)
        yield process
    finally:
        stop_group(process)


def wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"vLLM ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(url + "/health", timeout=2):
                return
        except OSError:
            time.sleep(0.25)
    raise AssertionError(f"vLLM was not ready after {START_TIMEOUT_S} s:\n{log.read_text()[-3000:]}")


def stop_group(process: "subprocess.Popen[bytes]") -> None:
    """End the server and everything it started, and nothing else."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
