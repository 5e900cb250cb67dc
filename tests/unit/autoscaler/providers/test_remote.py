"""A provider in another environment is asked over stdin and stdout, and costs its own calls only."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from rl_agent.autoscaler.providers.remote import running
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine

MODULE = "tests.unit.autoscaler.providers.pretended"
KIND = EngineKind("spot", 1.5, 0, 4, 60.0)


def provider(python=sys.executable, **more):
    return running(python, MODULE, {"state": "running"}, **more)


async def test_started_machine_is_listed_until_stopped_despite_library_output():
    async with provider() as remote:
        await remote.start("a-1", KIND)
        await remote.start("a-2", KIND)
        await remote.stop("a-1")
        assert await remote.machines() == [RentedMachine("a-2", "spot", MachineState.RUNNING)]


async def test_errors_are_one_line_and_end_their_own_call_only():
    async with provider() as remote:
        with pytest.raises(ProviderError, match=r"^the quota is used up and this is a second line$"):
            await remote.start("no-quota", KIND)
        with pytest.raises(ProviderError, match="KeyError: 'bug'"):
            await remote.start("bug", KIND)
        await remote.start("a-1", KIND)
        assert len(await remote.machines()) == 1


async def test_a_machine_is_told_where_the_manager_is_when_it_starts():
    settings = {"state": "running", "manager": "http://10.0.0.1:5000"}
    async with running(sys.executable, MODULE, settings) as remote:
        for host in ("10.0.0.1", "10.0.0.2"):
            settings["manager"] = f"http://{host}:5000"
            with pytest.raises(ProviderError, match=f"it joins http://{host}:5000"):
                await remote.start("whose", KIND)


async def test_a_call_that_hangs_holds_up_no_other():
    async with provider() as remote:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await remote.start("hangs", KIND)
        assert await remote.machines() == []


async def test_silent_provider_process_is_killed_with_its_group_and_restarted():
    async with provider(limit_s=5.0) as remote:
        await remote.machines()
        pid = remote._process.pid
        remote._limit_s = 0.2
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ProviderError, match=r"did not answer for 0\.2 s and was ended"):
            await remote.start("a-1", KIND)
        remote._limit_s = 30.0
        assert await remote.machines() == [] and remote._process.pid != pid


async def test_one_call_that_hangs_kills_no_process_that_answers_others():
    async with provider() as remote:
        await remote.machines()
        pid, remote._limit_s = remote._process.pid, 0.5
        hanging = asyncio.ensure_future(remote.start("hangs", KIND))
        await asyncio.sleep(0)
        remote._limit_s = 30.0
        await remote.machines()
        with pytest.raises(TimeoutError):
            await hanging
        assert await remote.machines() == [] and remote._process.pid == pid


async def test_a_process_that_dies_fails_what_was_asked_and_is_started_again():
    async with provider() as remote:
        with pytest.raises(ProviderError, match="its process ended"):
            await remote.start("dies", KIND)
        assert await remote.machines() == []


async def test_nothing_is_left_when_the_block_ends_even_with_a_call_that_hangs():
    async with provider() as remote:
        await remote.machines()
        pid = remote._process.pid
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await remote.start("hangs", KIND)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_interpreter_that_is_not_there_is_named():
    async with provider("/nowhere/python") as remote:
        with pytest.raises(ProviderError, match="/nowhere/python cannot be started: No such file"):
            await remote.machines()


async def test_settings_are_not_in_the_command_line_that_all_can_read():
    async with provider() as remote:
        await remote.machines()
        line = await asyncio.to_thread(Path(f"/proc/{remote._process.pid}/cmdline").read_bytes)
    assert MODULE.encode() in line and b"running" not in line
