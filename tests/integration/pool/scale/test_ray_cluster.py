"""Machines on a real Ray cluster: actors that outlive their provider, placed by GPU, ended by a drain."""

import asyncio
import json
import os
import select
import signal
import subprocess
from contextlib import suppress

import pytest

from rl_agent.autoscaler.catalog import connected
from rl_agent.autoscaler.providers.settings import RaySettings, read_settings
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.demand.records import EngineKind, ProviderError

PYTHON = PROJECT_ROOT / ".venv/ray/bin/python"
NODES = PROJECT_ROOT / "tests/integration/pool/scale/ray_nodes.py"
CPU, GPU = EngineKind("cpu", 0.1, 0, 4, 5.0), EngineKind("gpu", 2.0, 0, 4, 5.0)
pytestmark = [
    pytest.mark.extended,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PYTHON.exists(), reason="scripts/test.sh extended makes the environment with Ray"),
]


class RayCluster:
    """The cluster's process; `ask` has it do something as an administrator would."""

    def __init__(self, process):
        self.process = process
        self.address = self.line("cluster at ").split()[-1]

    def line(self, begins=""):
        for line in self.process.stdout:
            if line.startswith(begins):
                return line
        raise AssertionError("the cluster has ended")

    def ask(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return json.loads(self.line("answer ").removeprefix("answer "))


@pytest.fixture(scope="module")
def cluster():
    process = subprocess.Popen(
        [PYTHON, NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield RayCluster(process)
        process.communicate("", timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def settings(cluster, tmp_path, worker, fleet, drain_s=1):
    file = tmp_path / "ray.yaml"
    file.write_text("resources: {cpu: {num_cpus: 1}, gpu: {num_gpus: 1}}\n")
    words = [
        f"address={cluster.address}",
        f"worker={worker}",
        f"drain_s={drain_s}",
        f"log={tmp_path}/{{name}}.log",
    ]
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


async def test_machines_outlive_their_provider_and_drain_when_stopped(cluster, tmp_path, monkeypatch):
    script = tmp_path / "worker.sh"
    script.write_text(
        'trap "echo drained $1; exit" TERM; echo $1 $CUDA_VISIBLE_DEVICES; while :; do sleep 0.1; done\n'
    )
    given = settings(cluster, tmp_path, f"bash {script} {{name}}", "rl-a")
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


STUBBORN = 'trap "" TERM; echo $$ >$1.pid; while :; do sleep 0.1; done\n'
DRAINS = 'trap "echo drained; exit" TERM; echo $$ >$1.pid; while :; do sleep 0.1; done\n'


def worker(tmp_path, text):
    """Return the command of a worker that writes its number down."""
    script = tmp_path / "worker.sh"
    script.write_text(f"cd {tmp_path}\n{text}")
    return f"bash {script} {{name}}"


def pidfd(tmp_path, name):
    return os.pidfd_open(int((tmp_path / f"{name}.pid").read_text()))


def assert_ends(process):
    assert select.select([process], [], [], 30.0)[0], "it still runs"
    os.close(process)


async def test_worker_that_stays_is_killed_and_one_that_ends_frees_its_actor(cluster, tmp_path):
    given = settings(cluster, tmp_path, worker(tmp_path, "[ $1 = rl-b-2 ] && exit 3\n" + STUBBORN), "rl-b")
    async with connected("ray", given, str(PYTHON)) as provider:
        await provider.start("rl-b-1", CPU)
        await provider.start("rl-b-2", CPU)
        await states(provider, {"rl-b-1": "running"})
        await provider.stop("rl-b-1")
        await states(provider, {"rl-b-1": "stopping"})
        await states(provider, {})


async def test_stopped_and_self_ended_machines_are_no_crashes_for_ray(cluster, tmp_path, capfd):
    given = settings(cluster, tmp_path, worker(tmp_path, "[ $1 = rl-g-2 ] && exit 3\n" + DRAINS), "rl-g")
    async with connected("ray", given, str(PYTHON)) as provider:
        await provider.start("rl-g-1", CPU)
        await provider.start("rl-g-2", CPU)
        await states(provider, {"rl-g-1": "running"})
        await provider.stop("rl-g-1")
        await states(provider, {})
        await asyncio.sleep(3.0)  # Ray reports a crash a second later
    said = capfd.readouterr().err
    assert "died" not in said and "SIGTERM handler" not in said


async def test_a_worker_that_ignores_term_ends_with_its_actor_however_that_dies(cluster, tmp_path):
    given = settings(cluster, tmp_path, worker(tmp_path, STUBBORN), "rl-c")
    async with connected("ray", given, str(PYTHON)) as provider:
        await provider.start("rl-c-1", CPU)
        await provider.start("rl-c-2", CPU)
        await states(provider, {"rl-c-1": "running", "rl-c-2": "running"})
        workers = [pidfd(tmp_path, name) for name in ("rl-c-1", "rl-c-2")]
        os.kill(cluster.ask("pid cpu/rl-c-1"), signal.SIGKILL)
        cluster.ask("kill cpu/rl-c-2")
        for process in workers:
            assert_ends(process)
        await states(provider, {})


async def test_worker_of_a_slow_or_killed_actor_drains_within_its_time(cluster, tmp_path):
    given = settings(cluster, tmp_path, worker(tmp_path, DRAINS), "rl-d", drain_s=60)
    async with connected("ray", given, str(PYTHON)) as provider:
        await provider.start("rl-d-1", CPU)
        await provider.start("rl-d-2", CPU)
        await states(provider, {"rl-d-1": "running", "rl-d-2": "running"})
        cluster.ask("kill cpu/rl-d-2")
        slow = cluster.ask("pid cpu/rl-d-1")
        os.kill(slow, signal.SIGSTOP)
        await provider.stop("rl-d-1")
        await states(provider, {"rl-d-1": "running"})
        os.kill(slow, signal.SIGCONT)
        await states(provider, {})
    for name in ("rl-d-1", "rl-d-2"):
        assert (tmp_path / f"{name}.log").read_text().endswith("drained\n")


async def test_foreign_actors_are_neither_listed_nor_ended(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("RL_AGENT_POOL_TOKEN", "a-secret-word")
    text = 'echo "token: ${RL_AGENT_POOL_TOKEN-}"\n' + DRAINS
    given = settings(cluster, tmp_path, worker(tmp_path, text), "rl-e")
    others = ("rl-e-1", "cpu/rl-e-1", "cpu/rl-e-x")
    async with connected("ray", given, str(PYTHON)) as provider:
        for other in others:
            cluster.ask(f"stranger {other}")
        await provider.start("rl-e-2", CPU)
        await states(provider, {"rl-e-2": "running"})
        assert "a-secret-word" not in cluster.ask("jobs")
        for name in ("rl-e-1", "rl-e-x", "rl-e-2"):
            await provider.stop(name)
        await states(provider, {})
        assert [cluster.ask(f"is_there {other}") for other in others] == ["ready"] * 3
    assert cluster.ask("requested") == "[]"
    assert (tmp_path / "rl-e-2.log").read_text().splitlines()[0] == "token: "


async def test_a_cluster_of_another_version_names_the_option_for_its_interpreter(cluster, tmp_path):
    known = cluster.ask("version 2.9.0")
    try:
        given = settings(cluster, tmp_path, "bash worker.sh {name}", "rl-f")
        async with connected("ray", given, str(PYTHON)) as provider:
            with pytest.raises(ProviderError, match=r"--provider-python .*2\.9\.0"):
                await provider.machines()
    finally:
        cluster.ask(f"version {known}")
