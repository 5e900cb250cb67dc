"""A trainer and an engine that have the same devices in turns, over real HTTP with simulated engines."""

import asyncio
import json
import os
from contextlib import asynccontextmanager

import pytest

from rl_agent.errors import DeadlineError
from rl_agent.pool.client import ask
from rl_agent.pool.gpu_turns import EngineTurnState, GpuTurn, TrainerTurns, TurnFiles
from rl_agent.system.processes import ProcessId
from rl_agent.trainer.grpo.gpu_sharing.sharing import SharedDevices, WindowedSource, read_status
from rl_agent.worker.engine_turns import EngineTurns
from tests.integration.pool.workers import engine_pids, worker
from tests.support.pool_setup import are_exact, manager

pytestmark = pytest.mark.timeout(120)
SLOW = ("--interval", "0.01")
LONG = 2000
"""Tokens: 20 s there, so that another engine starts meanwhile on a machine however busy."""
OWN = "own"
NO_PROCESS = ProcessId(2**22 + 1, 1)


@pytest.fixture
def files(tmp_path):
    return TurnFiles(tmp_path / "turn.json")


class Groups:
    """A source of groups that a test fills; what they are does not matter here."""

    def __init__(self):
        self.arrived = []
        self.is_over = False

    def take(self, most):
        if not self.arrived and self.is_over:
            return None
        taken, self.arrived = self.arrived[:most], self.arrived[most:]
        return taken


@asynccontextmanager
async def shared_engine(pool, folder, files, **more):
    """The engine of the trainer's machine."""
    turns = EngineTurns(files)
    (folder / OWN).mkdir()
    more = {"extra": SLOW, "loads_weights": True, "turns": turns} | more
    async with worker(pool.url, folder / OWN, name=OWN, **more) as running:
        yield running


async def shared_source(shared):
    """Groups that a test fills, and a trainer's source of them."""
    groups = Groups()
    return groups, await asyncio.to_thread(shared.source, groups)


def devices(pool, files, placement="hybrid"):
    def look():
        return read_status(ask(pool.url, "/status", None), OWN, max_staleness=0)

    return SharedDevices(placement, TrainerTurns(files, timeout_s=20.0), look, replaced=None)


async def take_until(source: WindowedSource, is_enough):
    """Play a trainer that has nothing to train on; returns what it was given."""
    given = []
    async with asyncio.timeout(40):
        while not is_enough(given):
            taken = await asyncio.to_thread(source.take, 8)
            if taken is None:
                return given
            given += taken
            await asyncio.sleep(0.05)
    return given


async def test_unfinished_requests_of_a_closed_window_continue_elsewhere(tmp_path, files):
    (tmp_path / "other").mkdir()
    async with manager() as pool, shared_engine(pool, tmp_path, files):
        shared = await asyncio.to_thread(devices, pool, files)
        groups, source = await shared_source(shared)
        opening = asyncio.create_task(take_until(source, lambda given: given))
        await pool.ready(1)
        await pool.submit("run", [LONG] * 6)
        await pool.until(lambda: pool.state.account.tokens > 200)
        groups.arrived = ["a group"]
        await asyncio.sleep(1.0)
        assert shared.is_open  # nobody else could go on
        async with worker(pool.url, tmp_path / "other", name="other", extra=("--interval", "0.002")):
            assert await opening == ["a group"]  # given once the engine sleeps
            assert not shared.is_open
            samples = await pool.samples("run", at_least=6)
            assert "slept" in (tmp_path / OWN / "engine.log").read_text()
            assert [engine.offer.name for engine in pool.state.engines.values()] == ["other"]
        assert are_exact(samples, LONG)
        assert {s["moves"] for s in samples} == {1}
        account = pool.state.account
        assert (account.submitted, account.completed, account.failed) == (6, 6, 0)
        assert account.engine_deaths == 0
        assert account.tokens == 6 * LONG  # none was sampled twice


async def test_without_other_engines_they_take_turns_until_the_work_is_done(tmp_path, files):
    async with manager() as pool, shared_engine(pool, tmp_path, files):
        shared = await asyncio.to_thread(devices, pool, files, "colocated")
        for iteration in (1, 2):
            groups, source = await shared_source(shared)
            working = asyncio.create_task(take_until(source, lambda given: False))
            await pool.submit(f"run-{iteration}", [50] * 4)
            assert len(await pool.samples(f"run-{iteration}", at_least=4)) == 4
            groups.arrived, groups.is_over = ["one", "two"], True
            assert await working == ["one", "two"]
            assert not shared.is_open and not pool.state.engines
        assert len(engine_pids(tmp_path / OWN)) == 1  # the same engine, asleep in between
        assert pool.state.account.failed == 0


async def test_the_engine_goes_on_while_the_trainer_is_dead(tmp_path, files):
    files.write_turn(GpuTurn(7, is_engines=False, trainer=NO_PROCESS))
    async with manager() as pool, shared_engine(pool, tmp_path, files):
        await pool.ready(1)
        shared = await asyncio.to_thread(devices, pool, files)  # the next trainer takes the devices back
        assert not shared.is_open and not pool.state.engines
        assert files.read_turn() == GpuTurn(8, is_engines=False, trainer=ProcessId.of(os.getpid()))


async def test_a_killed_engine_of_the_turn_gives_the_devices_back(tmp_path, files):
    async with manager() as pool, shared_engine(pool, tmp_path, files):
        shared = await asyncio.to_thread(devices, pool, files, "colocated")
        groups, source = await shared_source(shared)
        working = asyncio.create_task(take_until(source, lambda given: given))
        await pool.ready(1)
        os.killpg(engine_pids(tmp_path / OWN)[0], 9)
        groups.arrived, groups.is_over = ["one"], True
        assert await working == ["one"]
        assert not files.read_engine().is_awake


def test_an_engine_that_does_not_rest_is_named(files):
    files.write_turn(GpuTurn(1, is_engines=True, trainer=ProcessId.of(os.getpid())))
    files.write_engine(EngineTurnState(1, is_awake=True, has_served=True, worker=ProcessId.of(os.getpid())))
    with pytest.raises(DeadlineError, match=f"worker process {os.getpid()} did not give the devices back"):
        TrainerTurns(files, timeout_s=0.3).take()
    assert json.loads(files.turn.read_text())["is_engines"] is False
