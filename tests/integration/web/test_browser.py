"""However a browser or its owner ends, nothing of it is left, and the next episode has another."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from rl_agent.env.guard import descendants, has_word
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.errors import EnvironmentFailure
from tests.support.small_disk import fill, small_disk_at

from .conftest import hostile, is_alive

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.extended, pytest.mark.timeout(180)]

OWNER = """
import asyncio, sys, time
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.types import Task
async def main():
    environment = WebEnvironment()
    await environment.reset(Task("a", "p", "web", "easy", extra={"miniwob": "click-test"}), 0)
    print("ready", flush=True)
    time.sleep(1000)  # the event loop is blocked too
asyncio.run(main())
"""


def newest():
    (shared,) = WebEnvironment._shared.values()
    return shared._newest


def wait_until_gone(pids, seconds=15):
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.mark.parametrize("frozen", ["--type=renderer", "guard.py", "run-driver"])
async def test_an_owner_that_is_killed_leaves_nothing_whatever_was_frozen(frozen, tmp_path):
    command = [sys.executable, "-c", OWNER]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    owner = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, env=environment)
    assert await asyncio.to_thread(owner.stdout.readline) == b"ready\n"
    family = [owner.pid, *descendants(owner.pid)]
    assert len(family) > 5
    os.kill(next(pid for pid in family if has_word(pid, frozen.encode())), signal.SIGSTOP)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert not await asyncio.to_thread(wait_until_gone, family)
    assert not list(tmp_path.glob("rl-agent-browser-*"))


async def test_a_browser_that_is_killed_fails_its_episode_and_no_other(web):
    environment = web()
    await environment.reset(hostile("calm"), 0)
    family = descendants(newest().pid)
    os.kill(family[1], signal.SIGKILL)
    with pytest.raises(EnvironmentFailure, match="browser"):
        for _ in range(3):
            await environment.step("click 500 500")
    await environment.reset(hostile("calm"), 0)
    assert (await environment.step("answer yes")).reward == 1.0
    assert not await asyncio.to_thread(wait_until_gone, family)


async def test_a_frozen_browser_fails_in_bounded_time(web):
    environment = web(action_timeout_s=2, load_timeout_s=4)
    await environment.reset(hostile("calm"), 0)
    (browser,) = [b for shared in WebEnvironment._shared.values() for b in shared._all if b.leased]
    family = descendants(browser.pid)[1:]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(EnvironmentFailure):
        await environment.step("click 500 500")
    await environment.close()
    assert time.monotonic() - began < 60
    assert not await asyncio.to_thread(wait_until_gone, family)


async def test_a_browser_is_replaced_by_age_and_its_last_episode_ends_it(web):
    first, second = web(max_episodes=1), web(max_episodes=1)
    await first.reset(hostile("calm"), 0)
    old = descendants(first._browser.pid)
    await second.reset(hostile("calm"), 0)
    assert second._browser is not first._browser
    assert (await first.step("answer yes")).reward == 1.0
    await first.close()
    assert not await asyncio.to_thread(wait_until_gone, old)
    assert (await second.step("answer yes")).reward == 1.0


GIB = 1 << 30


@pytest.mark.timeout(300)
async def test_a_page_of_a_gigabyte_costs_its_episode_and_replaces_the_browser(web, monkeypatch):
    monkeypatch.setattr("rl_agent.env.web.browser._MEASURE_EVERY_S", 0.0)
    settings = {"max_page_mib": 4096, "max_browser_mib": 1024, "action_timeout_s": 60, "at_once": 4}
    greedy, neighbour, later = (web(**settings) for _ in range(3))
    await greedy.reset(hostile("large"), 0)
    await neighbour.reset(hostile("calm"), 0)
    grown = greedy._browser
    assert neighbour._browser is grown
    family = descendants(grown.pid)
    building = asyncio.ensure_future(greedy.step("click 500 500"))
    async with asyncio.timeout(120):
        while await asyncio.to_thread(grown.resident_bytes) < GIB:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.2)

    await later.reset(hostile("calm"), 0)  # where the page takes more than a browser may have
    assert later._browser is not grown
    assert (await neighbour.step("answer yes")).reward == 1.0
    await neighbour.close()
    building.cancel()
    await asyncio.wait([building])
    await greedy.close()
    assert not await asyncio.to_thread(wait_until_gone, family)
    assert (await later.step("answer yes")).reward == 1.0


@pytest.mark.timeout(300)
async def test_a_page_over_its_memory_limit_is_ended_and_no_other_page(web):
    settings = {"max_page_mib": 1024, "action_timeout_s": 60, "at_once": 4}
    greedy, neighbour = web(**settings), web(**settings)
    await greedy.reset(hostile("large"), 0)
    await neighbour.reset(hostile("calm"), 0)
    browser = greedy._browser
    most = 0

    async def measure():
        nonlocal most
        while True:
            most = max(most, await asyncio.to_thread(browser.resident_bytes))
            await asyncio.sleep(0.05)

    measuring = asyncio.ensure_future(measure())
    told = ""
    async with asyncio.timeout(200):
        for action in ("click 500 500", *["wait 1"] * 60):
            told = (await greedy.step(action)).observation.text
            if "The first page was opened again." in told:
                break
    measuring.cancel()
    assert "The page crashed. The first page was opened again." in told
    assert most > 0.9 * GIB
    assert (await neighbour.step("answer yes")).reward == 1.0
    assert (await greedy.step("answer yes")).reward == 1.0
    assert neighbour._browser is greedy._browser is browser and not browser.has_died


async def test_a_full_disk_fails_the_episode_with_its_reason_and_the_next_works(web, tmp_path, monkeypatch):
    with small_disk_at(tmp_path / "disk", "32m") as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        environment = web()
        try:
            await environment.reset(hostile("calm"), 0)
            filler = disk / "filler"
            fill(filler)
            with pytest.raises(EnvironmentFailure, match=r"its screenshot .* cannot be kept: No space left"):
                await environment.step("click 500 500")
            filler.unlink()
            await environment.reset(hostile("calm"), 0)
            assert (await environment.step("answer yes")).reward == 1.0
        finally:
            await environment.close()
            await WebEnvironment.close_shared()
