"""The provider `slurm` and scripts/slurm/join_pool.sbatch under a real Slurm; the engines are simulated."""

import asyncio
import shlex
import sys

import pytest

from rl_agent.autoscaler.providers import slurm
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine
from tests.integration.slurm.slurm_jobs import cluster  # noqa: F401
from tests.support.pool_setup import expected, manager

ENGINE = PROJECT_ROOT / "tests" / "support" / "streaming_engine.py"
SPOT = EngineKind("spot", 2.5, 0, 4, 60.0)
LIMIT_S = 60
VLLM = """\
#!/usr/bin/env bash
# Stands in for an interpreter that has vLLM: `-m MODULE MODEL … --port PORT …`
model=$3
while (($#)); do
  if [[ $1 == --port ]]; then port=$2; fi
  shift
done
exec {python} {engine} --port "$port" --root "$model" --interval 0.01 --takes-weights
"""


@pytest.fixture
def slurm_here(cluster, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    monkeypatch.delenv("RL_AGENT_POOL_TOKEN", raising=False)
    yield cluster
    cluster.end_jobs()


@pytest.fixture
def provider_settings(tmp_path):
    """Settings of a provider whose workers have simulated engines."""
    interpreter = tmp_path / "python-with-vllm"
    interpreter.write_text(VLLM.format(python=shlex.quote(sys.executable), engine=shlex.quote(str(ENGINE))))
    interpreter.chmod(0o755)
    worker = f"--model model-a --weights store={tmp_path} --engine-python {interpreter} --log {tmp_path}/log"
    return {"worker": worker, "options": f"--output={tmp_path}/%x.out", "drain_s": 30}


@pytest.fixture
def provider_for(slurm_here, provider_settings):
    """A provider for a manager's address, given what differs of its settings."""

    def make(manager_url, options="", **more):
        known = provider_settings | {"options": f"{provider_settings['options']} {options}"}
        settings = slurm.SlurmSettings(manager=manager_url, fleet="test", **(known | more))
        return slurm.SlurmProvider(settings)

    return make


async def until_machines(provider, wanted):
    async with asyncio.timeout(LIMIT_S):
        while sorted(await provider.machines(), key=lambda machine: machine.name) != wanted:  # noqa: ASYNC110 - Slurm's
            await asyncio.sleep(0.2)


async def test_machines_start_once_join_under_their_names_and_drain_when_stopped(provider_for, slurm_here):
    strangers = slurm_here.call(
        "sbatch", "--parsable", "--output=/dev/null", "--job-name=other-1", "--wrap=sleep 60"
    )
    async with manager("lease_s=5.0") as pool:
        provider = provider_for(pool.url)
        for name in ("test-1", "test-2", "test-1"):
            await provider.start(name, SPOT)
        assert {(machine.name, machine.kind) for machine in await provider.machines()} == {
            ("test-1", "spot"),
            ("test-2", "spot"),
        }
        await pool.ready(2)
        assert {engine.offer.name for engine in pool.state.engines.values()} == {"test-1", "test-2"}
        assert {engine.offer.price_per_hour for engine in pool.state.engines.values()} == {2.5}
        await pool.submit("run", [300] * 8)
        await pool.until(lambda: all(engine.running for engine in pool.state.engines.values()))
        await provider.stop("test-1")
        await until_machines(provider, [RentedMachine("test-2", "spot", MachineState.RUNNING)])
        assert pool.state.departed[-1].reason == "left in order"
        samples = await pool.samples("run", at_least=8)
        assert all(sample["token_ids"] == expected(300, int(sample["id"][1:])) for sample in samples)
        await provider.stop("test-2")
        await provider.stop("test-3")
        await until_machines(provider, [])
    assert slurm_here.field_of(strangers, "JobState") in ("RUNNING", "PENDING")


@pytest.mark.extended
async def test_a_preempted_machine_waits_under_its_name_and_joins_again(provider_for, slurm_here):
    async with manager("lease_s=5.0") as pool:
        provider = provider_for(pool.url, options="--partition=preemptible")
        await provider.start("test-1", SPOT)
        await pool.ready(1)
        urgent = slurm_here.call(
            "sbatch", "--parsable", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap=sleep 3"
        )
        await until_machines(provider, [RentedMachine("test-1", "spot", MachineState.PENDING)])
        assert pool.state.departed[-1].reason == "left in order"
        await provider.start("test-1", SPOT)  # it is asked for already
        await asyncio.to_thread(slurm_here.wait_for_state, urgent, "COMPLETED")
        await until_machines(provider, [RentedMachine("test-1", "spot", MachineState.RUNNING)])
        await pool.ready(1)
        assert [engine.offer.name for engine in pool.state.engines.values()] == ["test-1"]


@pytest.mark.extended
async def test_waiting_machines_are_cancelled_at_once_and_stubborn_ones_later(provider_for, slurm_here):
    async with manager() as pool:
        waits = provider_for(pool.url, options="--hold")
        await waits.start("test-1", SPOT)
        await until_machines(waits, [RentedMachine("test-1", "spot", MachineState.PENDING)])
        await waits.stop("test-1")
        assert await waits.machines() == []

        stubborn = slurm_here.call(
            "sbatch",
            "--parsable",
            "--output=/dev/null",
            "--job-name=test-2",
            "--comment=spot",
            "--wrap=trap '' TERM; sleep 600 & wait",
        )
        await until_machines(waits, [RentedMachine("test-2", "spot", MachineState.RUNNING)])
        provider = provider_for(pool.url, drain_s=0)
        await provider.stop("test-2")
        assert [machine.state for machine in await provider.machines()] == [MachineState.STOPPING]
        await provider.stop("test-2")
        await asyncio.to_thread(slurm_here.wait_for_state, stubborn, "CANCELLED")


async def test_a_job_that_slurm_refuses_fails_with_slurm_s_line(provider_for):
    provider = provider_for("http://127.0.0.1:9", options="--partition=nowhere")
    with pytest.raises(ProviderError, match="Invalid partition"):
        await provider.start("test-1", SPOT)
    assert await provider.machines() == []
