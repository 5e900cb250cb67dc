"""`pool scale --provider slurm` as a process, beside a manager, with real workers as jobs of a real Slurm."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager

import pytest

from rl_agent.pool.scheduler.records import EngineState
from tests.integration.slurm.slurm_jobs import cluster  # noqa: F401
from tests.integration.slurm.test_provider import provider_settings, slurm_here  # noqa: F401
from tests.support.pool_setup import expected, manager

LIMIT_S = 90
REQUESTS, LENGTH = 32, 400
"""An engine of two at a time has them for a minute."""
SCALED = (
    "scale.kinds=[{name: spot, price_per_hour: 2.5, min_engines: 0, max_engines: 2, start_s: 1}]",
    "scale.interval_s=0.1",
    "scale.raise_after_s=0",
    "scale.lower_after_s=0.3",
    "scale.finish_within_s=5",
    "lease_s=5.0",
)


@pytest.fixture
def scale(slurm_here, provider_settings, tmp_path):  # noqa: F811
    """Starts `pool scale` for a manager's address, always with the same state."""
    words = ["--provider", "slurm", "--state", str(tmp_path / "state.json"), "--fleet", "lab"]
    words += ["--poll-s", "0.3", "--settle-s", "2", "--drain-s", "20", "--start-timeout-s", "60"]

    @asynccontextmanager
    async def start(url):
        settings = provider_settings | {"worker": f"{provider_settings['worker']} --capacity 2"}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rl_agent.cli", "pool", "scale", *words, "--manager", url),
            *(f"{key}={value}" for key, value in settings.items()),
            stderr=PIPE,
            start_new_session=True,
        )
        error_output = asyncio.ensure_future(process.stderr.read())
        try:
            yield process, error_output
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            await error_output

    return start


@pytest.mark.extended
@pytest.mark.timeout(300)
async def test_machines_return_under_their_names_and_no_other_job_is_ended(
    scale,
    slurm_here,  # noqa: F811
):
    def jobs():
        lines = slurm_here.call("squeue", "--noheader", "--format=%j %i %T").splitlines()
        return {line.split()[0]: line.split()[1:] for line in lines}

    async def until_jobs(condition):
        async with asyncio.timeout(LIMIT_S):
            while not condition(await asyncio.to_thread(jobs)):  # noqa: ASYNC110 - Slurm's
                await asyncio.sleep(0.2)

    def ready(pool):
        return {engine.offer.name: engine.engine_id for engine in pool.state.living(EngineState.READY)}

    stranger = slurm_here.call(
        "sbatch", "--parsable", "--output=/dev/null", "--job-name=lab-1", "--wrap=sleep 300"
    )
    async with manager(*SCALED) as pool:
        async with scale(pool.url) as (first, _):
            await pool.submit("run", [LENGTH] * REQUESTS)
            await pool.until(lambda: len(ready(pool)) == 2)
            names = ready(pool)
            os.killpg(first.pid, signal.SIGKILL)
            await first.wait()
        assert {name for name in await asyncio.to_thread(jobs) if name != "lab-1"} == names.keys()
        victim = min(names)
        number = (await asyncio.to_thread(jobs))[victim][0]
        async with scale(pool.url) as (again, error_output):
            slurm_here.call("scontrol", "requeue", number)
            await pool.until(lambda: ready(pool).get(victim, names[victim]) != names[victim])
            assert (await asyncio.to_thread(jobs))[victim][0] == number
            other = max(names)
            number = (await asyncio.to_thread(jobs))[other][0]
            slurm_here.call("scancel", "--batch", "--signal=TERM", number)
            await pool.until(
                lambda: [departure.reason for departure in pool.state.departed][:2] == ["left in order"] * 2
            )
            samples = await pool.samples("run", at_least=REQUESTS, wait_s=60)
            assert all(sample["token_ids"] == expected(LENGTH, int(sample["id"][1:])) for sample in samples)
            await until_jobs(lambda jobs_left: jobs_left.keys() == {"lab-1"})  # nothing is wanted any more
            assert not ready(pool)
            again.terminate()
            assert await asyncio.wait_for(again.wait(), LIMIT_S) == 0, (await error_output).decode()
            assert "no machine is left" in (await error_output).decode()
        assert slurm_here.field_of(stranger, "JobState") == "RUNNING"
