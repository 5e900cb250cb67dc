"""A trainer that was started elsewhere takes the place of one that is half alive."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from secrets import token_hex

import aiohttp

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.owned import end_owned, start_owned
from tests.integration.pool.test_restart import manager_process

PUBLISHER = PROJECT_ROOT / "tests/integration/trainer/stream/publisher.py"
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@asynccontextmanager
async def publisher(url, folder, *values, file=None):
    """A process that is ready to publish."""
    folder.mkdir(exist_ok=True)
    words = (str(PUBLISHER), url, str(file or folder / "no-file"), str(folder), *map(str, values))
    environ = os.environ | ALONE | {"OMP_NUM_THREADS": "1"}
    process = await start_owned(sys.executable, *words, env=environ, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        await end_owned(process, 0.0)


async def published_by(process):
    """Let it publish, and return the number of the version that the manager then knows from it."""
    process.stdin.write(b"next\n")
    return int(await process.stdout.readline())


async def test_the_later_trainer_takes_over_and_the_older_ends_with_one_line(tmp_path):
    async with (
        aiohttp.ClientSession() as session,
        manager_process(free_port(), tmp_path / "journal") as (_, url),
    ):

        async def post(path, body, secret=""):
            async with session.post(url + path, json=body, headers={"X-Engine-Secret": secret}) as answer:
                return await answer.json()

        async def offered():
            """Return what a worker that joins now is to fetch, and its sources."""
            body, secret = {"name": token_hex(4), "has_worker": True, "capacity": 1}, token_hex(16)
            engine = (await post("/engines", body, secret))["engine_id"]
            weights = (await post(f"/engines/{engine}/beat", {}, secret))["weights"]
            return weights["weight_version"], tuple(weights["sources"]), weights["digest"]

        async with (  # all of them at once, for they take seconds to begin
            publisher(url, tmp_path / "old", 0.5) as old,
            publisher(url, tmp_path / "new", 0.25) as new,
        ):
            assert await published_by(old) == 1
            before = await offered()
            os.kill(old.pid, signal.SIGSTOP)
            assert await published_by(new) == 2, "a number never stands for two contents"
            after = await offered()
            assert after[0] == 2 and not set(after[1]) & set(before[1])
            os.kill(old.pid, signal.SIGCONT)
            lines = (await asyncio.wait_for(old.stderr.read(), 30)).decode().splitlines()[-1]
            assert lines.startswith(f"{url}: a trainer that was started later has this one's place")
            assert await old.wait() == 78
            assert await offered() == after
