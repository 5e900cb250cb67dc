"""A manager that moves, and workers that follow it by the file that states its address."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rl_agent.cli.__main__ import main
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.errors import RetryLater
from rl_agent.pool import manager_file
from rl_agent.pool.manager_file import ManagerFile, address_in, wait_for_address
from rl_agent.pool.run_pool import write_address
from rl_agent.system.files import write_whole
from rl_agent.worker.manager_client import ManagerCalls
from tests.integration.pool.test_restart import manager_process, take_samples
from tests.integration.pool.workers import worker
from tests.support.pool_setup import expected, item, manager

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


def test_manager_file_on_a_hanging_file_system_blocks_no_worker(tmp_path, monkeypatch):
    """On a file system that begins to hang between the two."""
    monkeypatch.setattr(manager_file, "READ_TIMEOUT_S", 0.05)
    goes_on = threading.Event()
    monkeypatch.setattr(ManagerFile, "_warn_of_others", lambda file, text: goes_on.wait(10.0))
    path = tmp_path / "pool.url"
    path.write_text("http://127.0.0.1:5000\n")
    file = ManagerFile(str(path))
    assert (file.read(), file.problem) == (None, "the file system does not answer")
    goes_on.set()


@pytest.mark.parametrize("made", ["fifo", "folder", "device", "huge", "half", "binary", "dangling"])
def test_path_without_an_address_ends_the_wait_with_the_reason(tmp_path, made):
    path = tmp_path / "pool.url"
    match made:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "huge":
            path.write_text("http://127.0.0.1:5000\n" * 1000)
        case "half":
            path.write_text("http://127.0.0.1:50")
        case "binary":
            path.write_bytes(b"\xff\xfe\n")
        case "dangling":
            path.symlink_to(tmp_path / "nowhere")
    words = ["join-pool", "--manager-file", str(path), "--manager-timeout-s", "0.2", "--model", "x"]
    done = subprocess.run(
        [sys.executable, "-m", "rl_agent.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75
    assert f"{path}: states no address after 0.2 s: " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("where", ["file:///etc/hostname", "ftp://host/pool.url"])
def test_an_address_of_another_protocol_is_refused_at_once(capsys, where):
    assert main(["join-pool", "--manager-file", where, "--model", "x"]) == 2
    assert f"--manager-file {where}: expected a path, or http://HOST:PORT/FILE" in capsys.readouterr().err


async def test_manager_file_in_pieces_is_read_whole_and_redirects_are_refused():
    async def drip(request: web.Request) -> web.StreamResponse:
        if request.path == "/moved":
            raise web.HTTPFound("/drips")
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in (b"http://127.0.0.1:50", b"00", b"\n"):
            await answer.write(piece)
            await asyncio.sleep(0.02)
        return answer

    async with serving(drip) as server:
        assert await asyncio.to_thread(ManagerFile(server + "/drips").read) == "http://127.0.0.1:5000"
        moved = ManagerFile(server + "/moved")
        assert (
            await asyncio.to_thread(moved.read) is None
            and moved.problem == "it is answered by the status 302"
        )


async def test_keys_are_never_sent_to_the_target_of_a_redirect(tmp_path):
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/engines":
            raise web.HTTPTemporaryRedirect(f"http://localhost:{request.url.port}/stolen")
        return web.json_response({"engines": []})

    path = tmp_path / "pool.url"
    async with serving(answer) as server, aiohttp.ClientSession() as session:
        calls = ManagerCalls(session, server, lambda: "secret")
        assert (await calls.call("POST", "engines", {"api_key": "k"}))[0] != 200
        assert asked == ["/engines"]
        path.write_text(server + "\n")
        secure = ManagerCalls(session, "https://127.0.0.1:1", lambda: "secret", ManagerFile(str(path)))
        assert (await secure.call("GET", "status"))[0] == 0 and str(secure.url) == "https://127.0.0.1:1"
        assert asked == ["/engines"]


@asynccontextmanager
async def serving(answer):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize("by_http", [False, True], ids=["path", "http"])
async def test_workers_follow_a_manager_that_moves_and_nothing_is_lost(tmp_path, by_http):
    count, path, journal = 30, tmp_path / "pool.url", tmp_path / "journal"
    ports = free_port(), free_port()
    seen: list[dict] = []
    async with aiohttp.ClientSession() as session, serving(partial(file_as_it_is, path)) as served:
        take = partial(take_samples, session, seen)
        async with manager_process(ports[0], journal, "--url-file", str(path)) as (first, url):
            assert path.read_text() == url + "\n"
            follow = ManagerFile(served + "/pool.url" if by_http else str(path))
            more = {"is_direct": False, "extra": ("--interval", "0.005"), "manager_file": follow}
            (tmp_path / "b").mkdir()
            async with worker(url, tmp_path, **more), worker(url, tmp_path / "b", name="spot-2", **more):
                items = [item(number, 20 + 10 * number) for number in range(count)]
                async with session.post(url + "/runs/run/requests", json={"requests": items}) as answer:
                    assert answer.status == 202
                await take(url, 5)
                os.kill(first.pid, signal.SIGKILL)
                await first.wait()
                async with manager_process(ports[1], journal, "--url-file", str(path)) as (_, again):
                    assert again != url
                    while len(seen) < count:
                        await take(again, 1)
                    names: set[str] = set()
                    async with asyncio.timeout(20):
                        while names != {"spot-1", "spot-2"}:
                            async with session.get(again + "/status") as answer:
                                names = {engine["name"] for engine in (await answer.json())["engines"]}
    assert sorted(sample["id"] for sample in seen) == sorted(f"r{number}" for number in range(count))
    for sample in seen:
        number = int(sample["id"][1:])
        assert sample["token_ids"] == expected(20 + 10 * number, number)


async def file_as_it_is(path, _request):
    return web.Response(text=path.read_text())


@pytest.mark.parametrize("answer", ["[]", '{"error": "not here"}', "<html>", '{"engines": []}'])
async def test_a_lying_file_costs_no_engine(tmp_path, answer):
    """The manager is silent for a while, and the file names what is not a manager, or states nothing."""
    path, port = tmp_path / "pool.url", free_port()
    asked = 0

    async def lie(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=answer, status=503 if "engines" in answer else 200)

    async with serving(lie) as liar:
        path.write_text(liar + "\n")
        async with worker(f"http://127.0.0.1:{port}", tmp_path, manager_file=ManagerFile(str(path))):
            async with asyncio.timeout(20):
                while asked < 2:  # noqa: ASYNC110 - a server's counter
                    await asyncio.sleep(0.02)
            path.write_text("http://127.0.0\n")
            async with manager(f"port={port}", "model=model-a") as pool:
                await pool.ready(1)
                assert len(pool.state.engines) == 1


@pytest.mark.parametrize(
    ("mode", "folder_mode", "text", "words"),
    [
        (0o644, 0o755, "http://127.0.0.1:5000\n", ""),
        (0o600, 0o1777, "http://user:secret@127.0.0.1:5000\n", ""),
        (0o666, 0o755, "http://127.0.0.1:5000\n", "can be changed by others, who are then sent the token"),
        (0o664, 0o755, "http://127.0.0.1:5000\n", "can be changed by others, who are then sent the token"),
        (0o644, 0o777, "http://127.0.0.1:5000\n", "can be changed by others, who are then sent the token"),
        (0o644, 0o755, "http://user:secret@127.0.0.1:5000\n", "holds a password that others can read"),
    ],
)
def test_a_file_that_gives_others_the_token_is_one_clear_line(
    tmp_path, caplog, mode, folder_mode, text, words
):
    path = tmp_path / "shared" / "pool.url"
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(mode)
    path.parent.chmod(folder_mode)
    file = ManagerFile(str(path))
    assert {file.read() for _ in range(3)} == {"http://127.0.0.1:5000"}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == bool(words)
    assert all(line.startswith(f"--manager-file {path}: {words}") and "secret" not in line for line in lines)


def test_a_manager_writes_a_file_that_no_other_user_can_write(tmp_path):
    before = os.umask(0o002)
    try:
        write_address(tmp_path / "pool.url", "http://127.0.0.1:5000", "127.0.0.1")
    finally:
        os.umask(before)
    assert (tmp_path / "pool.url").stat().st_mode & 0o777 == 0o644
