"""A worker and a manager that is not there yet, or has another token."""

import asyncio
import re
from functools import partial

import aiohttp
import pytest

from rl_agent.cli._options import read_token
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.errors import deliberate
from rl_agent.worker.main import Worker
from tests.integration.pool.workers import engine_pids, settings, worker
from tests.support.pool_setup import are_exact, manager, token_file, until


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "held connection"])
async def test_a_worker_takes_up_a_token_that_was_rotated_and_comes_back(tmp_path, is_direct):
    token, theirs = (token_file(tmp_path / name, "old") for name in ("token", "theirs"))
    reading = partial(read_token, theirs)
    async with manager(f"token_file={token}") as pool:
        async with worker(pool.url, tmp_path, is_direct=is_direct, read_token=reading):
            await pool.ready(1)
            token_file(token, "new")
            # Refused for longer than its lease: it is gone, but neither its engine nor it has ended.
            await pool.until(lambda: not pool.state.engines)
            theirs.write_text("new\n")
            await pool.ready(1)
            assert len(engine_pids(tmp_path)) == 1
            pool.session.headers["Authorization"] = "Bearer new"
            await pool.submit("run", [30] * 4)
            assert are_exact(await pool.samples("run", at_least=4), 30)
        assert pool.state.departed[-1].reason == "left in order"


@pytest.mark.parametrize("model", [None, "model-a"])
async def test_a_worker_that_is_started_first_waits_for_its_manager(tmp_path, caplog, model):
    caplog.set_level("INFO")
    port = free_port()
    async with worker(f"http://127.0.0.1:{port}", tmp_path, model=model):
        await until(lambda: "waiting for the manager, which does not answer" in caplog.text, 20)
        async with manager(f"port={port}", "model=model-a") as pool:
            await pool.ready(1)


@pytest.mark.parametrize("model", [None, "model-a"])
async def test_a_worker_to_which_no_manager_comes_says_so(tmp_path, model):
    async with aiohttp.ClientSession() as session:
        values = settings("http://127.0.0.1:9", tmp_path, model=model, manager_timeout_s=1.0)
        with pytest.raises(BaseExceptionGroup) as caught:
            await Worker(values, session).run(asyncio.Event())
        assert re.search("127.0.0.1:9 has not answered for 1 s", str(deliberate(caught.value)))
