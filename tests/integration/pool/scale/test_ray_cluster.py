"""Machines on a real Ray cluster: actors that outlive their provider, placed by GPU, ended by a drain."""

import asyncio
import os
import signal
import subprocess
from contextlib import suppress

import pytest

from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.scale.catalog import connected
from rl_agent.pool.scale.providers.settings import RaySettings, read_settings
from rl_agent.pool.scale.records import EngineKind

PYTHON = PROJECT_ROOT / ".venv/ray/bin/python"
NODES = PROJECT_ROOT / "tests/integration/pool/scale/ray_nodes.py"
CPU, GPU = EngineKind("cpu", 0.1, 0, 4, 5.0), EngineKind("gpu", 2.0, 0, 4, 5.0)
pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.exists(), reason="scripts/test.sh extended makes the environment with Ray"),
]


@pytest.fixture(scope="module")
def address():
    process = subprocess.Popen(
        [PYTHON, NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for line in process.stdout:
            if line.startswith("cluster at "):
                yield line.split()[-1]
                break
        process.communicate("", timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def settings(address, tmp_path, worker, fleet):
    file = tmp_path / "ray.yaml"
    file.write_text("resources: {cpu: {num_cpus: 1}, gpu: {num_gpus: 1}}\n")
    words = [f"address={address}", f"worker={worker}", "drain_s=3", f"log={tmp_path}/{{name}}.log"]
    own = {"manager": "http://127.0.0.1:5000", "fleet": fleet}
    return read_settings(RaySettings, file, words, **own).model_dump()


async def states(provider, expected):
    """Wait until the provider lists this."""
    found = None
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while found != expected:
                found = {one.name: str(one.state) for one in await provider.machines()}
                await asyncio.sleep(0.2)
    assert found == expected


async def test_machines_outlive_their_provider_are_placed_by_gpu_and_drain_when_stopped(address, tmp_path):
    script = tmp_path / "worker.sh"
    script.write_text(
        'trap "echo drained $1; exit" TERM; echo $1 $CUDA_VISIBLE_DEVICES; while :; do sleep 0.1; done\n'
    )
    given = settings(address, tmp_path, f"bash {script} {{name}}", "rl-a")
    async with connected("ray", given, str(PYTHON)) as provider:
        await provider.start("rl-a-1", GPU)
        await provider.start("rl-a-1", GPU)
        await states(provider, {"rl-a-1": "running"})
        await provider.start("rl-a-2", GPU)  # the cluster has one
        await provider.start("rl-a-3", CPU)
        await states(provider, {"rl-a-1": "running", "rl-a-2": "pending", "rl-a-3": "running"})
    async with connected("ray", given, str(PYTHON)) as provider:
        assert {one.name: one.kind for one in await provider.machines()} == {
            "rl-a-1": "gpu",
            "rl-a-2": "gpu",
            "rl-a-3": "cpu",
        }
        await provider.stop("rl-a-1")
        await states(provider, {"rl-a-2": "running", "rl-a-3": "running"})
        for name in ("rl-a-2", "rl-a-3", "rl-a-9"):
            await provider.stop(name)
        await states(provider, {})
    said = (tmp_path / "rl-a-1.log").read_text().splitlines()
    assert said[0] == "rl-a-1 0" and said[-1] == "drained rl-a-1"


async def test_a_worker_that_does_not_leave_is_killed_and_one_that_ends_frees_its_actor(address, tmp_path):
    script = tmp_path / "worker.sh"
    script.write_text('[ $1 = rl-b-2 ] && exit 3; trap "" TERM; while :; do sleep 0.1; done\n')
    given = settings(address, tmp_path, f"bash {script} {{name}}", "rl-b")
    async with connected("ray", given, str(PYTHON)) as provider:
        await provider.start("rl-b-1", CPU)
        await provider.start("rl-b-2", CPU)
        await states(provider, {"rl-b-1": "running"})
        await provider.stop("rl-b-1")
        await states(provider, {"rl-b-1": "stopping"})
        await asyncio.sleep(3.1)
        await provider.stop("rl-b-1")
        await states(provider, {})
