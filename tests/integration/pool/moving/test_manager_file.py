"""A manager that moves, and workers that follow it by the file that states its address."""

import asyncio
import os
import signal
import threading
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.cli.__main__ import main
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.errors import RetryLater
from rl_agent.pool import manager_file
from rl_agent.pool.manager_file import ManagerFile, address_in, wait_for_address
from rl_agent.system.files import write_whole
from tests.integration.pool.test_restart import (
    LENGTHS,
    assert_whole,
    manager_process,
    submit,
    take_samples,
)
from tests.integration.pool.workers import worker
from tests.support.pool_setup import manager, until

LIES = [
    "",
    "\n",
    "http://",
    "https://host\x00:1/",
    "http://127.0.0.1:notaport",
    "{}",
    "gopher://127.0.0.1:70",
]


@pytest.mark.parametrize("text", LIES)
def test_what_states_no_address_is_none(text):
    assert address_in(text) is None


def test_an_address_is_the_file_s_only_line():
    assert address_in("http://127.0.0.1:5000\n") == "http://127.0.0.1:5000"
    assert address_in("https://pool.example:5000/status\n") == "https://pool.example:5000"
    assert address_in("http://127.0.0.1:5000\nhttp://127.0.0.1:5001\n") is None


async def test_a_worker_waits_for_the_file_of_a_run_that_begins_later(tmp_path):
    path = tmp_path / "pool.url"
    waiting = asyncio.ensure_future(asyncio.to_thread(wait_for_address, ManagerFile(str(path)), 10))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    write_whole(path, "http://127.0.0.1:5000\n")
    assert await waiting == "http://127.0.0.1:5000"


def test_a_file_that_never_comes_ends_the_wait_with_its_name(tmp_path):
    with pytest.raises(RetryLater, match=r"pool\.url: states no address after 0 s"):
        wait_for_address(ManagerFile(str(tmp_path / "pool.url")), 0)


def test_a_file_system_that_hangs_holds_one_thread_and_no_worker(monkeypatch):
    monkeypatch.setattr(manager_file, "READ_TIMEOUT_S", 0.05)
    goes_on, reads = threading.Event(), []

    def hang(path, tls_ca):
        reads.append(path)
        goes_on.wait()
        return "http://127.0.0.1:5000\n"

    monkeypatch.setattr(manager_file, "_content", hang)
    file = ManagerFile("pool.url")
    assert [file.read() for _ in range(3)] == [None] * 3
    assert len(reads) == 1 and file.problem == "the file system does not answer"
    monkeypatch.setattr(manager_file, "READ_TIMEOUT_S", 5)
    goes_on.set()  # for the one that reads
    assert file.read() == "http://127.0.0.1:5000"


@pytest.mark.parametrize("where", ["file:///etc/hostname", "ftp://host/pool.url"])
def test_an_address_of_another_protocol_is_refused_at_once(capsys, where):
    assert main(["join-pool", "--manager-file", where, "--model", "x"]) == 2
    assert f"--manager-file {where}: expected a path, or http://HOST:PORT/FILE" in capsys.readouterr().err


@asynccontextmanager
async def serving(answer):
    async with RawTestServer(answer) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize("by_http", [False, True], ids=["path", "http"])
async def test_workers_follow_a_manager_that_moves_and_nothing_is_lost(tmp_path, by_http):
    path, journal, ports = tmp_path / "pool.url", tmp_path / "journal", (free_port(), free_port())
    seen: list[dict] = []
    async with aiohttp.ClientSession() as session, serving(partial(file_as_it_is, path)) as served:
        take = partial(take_samples, session, seen)
        async with manager_process(ports[0], journal, "--url-file", str(path)) as (first, url):
            assert path.read_text() == url + "\n"
            follow = ManagerFile(served + "/pool.url" if by_http else str(path))
            more = {"is_direct": False, "extra": ("--interval", "0.005"), "manager_file": follow}
            (tmp_path / "b").mkdir()
            async with worker(url, tmp_path, **more), worker(url, tmp_path / "b", name="spot-2", **more):
                await submit(session, url, LENGTHS)
                await take(url, 5)
                os.kill(first.pid, signal.SIGKILL)
                await first.wait()
                async with manager_process(ports[1], journal, "--url-file", str(path)) as (_, again):
                    assert again != url
                    while len(seen) < len(LENGTHS):
                        await take(again, 1)
                    names: set[str] = set()
                    async with asyncio.timeout(20):
                        while names != {"spot-1", "spot-2"}:
                            async with session.get(again + "/status") as answer:
                                names = {engine["name"] for engine in (await answer.json())["engines"]}
    assert_whole(seen)


async def file_as_it_is(path, _request):
    return web.Response(text=path.read_text())


@pytest.mark.parametrize("answer", ["<html>", '{"engines": []}'])
async def test_a_wrong_file_costs_no_engine(tmp_path, answer):
    """The manager is silent for a while, and the file names what is not a manager, or states nothing."""
    path, port = tmp_path / "pool.url", free_port()
    questions = 0

    async def lie(_request: web.Request) -> web.Response:
        nonlocal questions
        questions += 1
        return web.Response(text=answer, status=503 if "engines" in answer else 200)

    async with serving(lie) as liar:
        path.write_text(liar + "\n")
        async with worker(f"http://127.0.0.1:{port}", tmp_path, manager_file=ManagerFile(str(path))):
            await until(lambda: questions == 2, 20)
            path.write_text("http://127.0.0\n")
            async with manager(f"port={port}", "model=model-a") as pool:
                await pool.ready(1)
                assert len(pool.state.engines) == 1
