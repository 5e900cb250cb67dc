"""A manager that is killed and started at another port, while a trainer publishes and machines are scaled."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager

import aiohttp

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.system.owned import end_owned, start_owned
from tests.integration.pool.test_restart import manager_process
from tests.integration.trainer.stream.test_moved_trainer import published_by, publisher
from tests.support.pool_setup import until

LIMIT_S = 60


def kinds(fewest):
    kind = f"name: cpu, price_per_hour: 0.1, min_engines: {fewest}, max_engines: 3, start_s: 60"
    return f"scale.kinds=[{{{kind}}}]"


@asynccontextmanager
async def scaling(folder, file):
    """A `pool scale` whose machines are lines of `machines`; `told` has the manager that each is to join."""
    machines, told = folder / "machines", folder / "told"
    machines.touch()
    told.touch()
    words = ("pool", "scale", "--provider", "command", "--manager-file", str(file))
    words += ("--poll-s", "0.1", "--settle-s", "0.5")
    provider = (
        "shell=true",
        f"start=echo {{name}} running {{kind}} >>{machines}; echo {{manager}} >>{told}",
        f"stop=sed -i '/^'{{name}}' /d' {machines}",
        f"list=cat {machines}",
    )
    command = (sys.executable, "-m", "rl_agent.cli", *words, "--state", str(folder / "state.json"), *provider)
    process = await start_owned(*command, stderr=PIPE)
    try:
        yield process, machines, told
    finally:
        await end_owned(process, 0.0)


async def test_trainer_and_pool_scale_follow_a_manager_that_was_killed_and_moved(tmp_path):
    file, journal, ports = tmp_path / "pool.url", tmp_path / "journal", (free_port(), free_port())

    def manager(port, fewest):
        return manager_process(port, journal, kinds(fewest), "--url-file", str(file))

    async with (
        aiohttp.ClientSession() as session,
        manager(ports[0], 1) as (first, url),
        publisher(url, tmp_path / "trainer", 0.5, 0.25, file=file) as trainer,
        scaling(tmp_path, file) as (scale, machines, told),
    ):
        assert await published_by(trainer) == 1
        await until(lambda: told.read_text() == f"{url}\n")
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        version = asyncio.ensure_future(published_by(trainer))  # there is no manager while it announces
        async with manager(ports[1], 2) as (_, again):
            assert again != url
            assert await asyncio.wait_for(version, LIMIT_S) == 2
            async with session.get(again + "/status") as answer:
                assert (await answer.json())["weight_version"] == 2
            await until(lambda: told.read_text() == f"{url}\n{again}\n")
            scale.terminate()
            lines = (await asyncio.wait_for(scale.stderr.read(), LIMIT_S)).decode()
            assert await scale.wait() == 0 and machines.read_text() == ""
            assert f"the manager has moved to {again}\n" in lines
            assert trainer.returncode is None
