"""A manager that is killed outright: its successor goes on, and its engines come back by themselves."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from time import monotonic

import aiohttp
import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.pool.schemas import ENGINE_SECRET
from tests.integration.pool.workers import worker
from tests.support.pool_setup import expected, item, later_wins, read_journal, until

WORDS = ("lease_s=1.0", "heartbeat_s=0.2", "probe_interval_s=0.2")


@asynccontextmanager
async def manager_process(port: int, journal: Path, *more: str):
    words = later_wins([*WORDS, *more])
    command = ("-m", "rl_agent.cli", "manager", f"port={port}", f"journal={journal}", *words)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def take_samples(session: aiohttp.ClientSession, seen: list[dict], url: str, at_least: int) -> None:
    """Add the next samples of the run to those that were seen."""
    after = seen[-1]["cursor"] if seen else 0
    path = f"/runs/run/samples?after={after}&min={at_least}&wait_s=60"
    async with session.get(url + path) as answer:
        assert answer.status == 200, await answer.text()
        seen.extend(json.loads(line) for line in (await answer.read()).splitlines())


LENGTHS = [20 + 10 * number for number in range(40)]


def assert_whole(samples: list[dict]) -> None:
    """Check that requests of `LENGTHS` have been answered once each, with exactly their tokens."""
    assert sorted(sample["id"] for sample in samples) == sorted(f"r{n}" for n in range(len(LENGTHS)))
    for sample in samples:
        number = int(sample["id"][1:])
        assert sample["token_ids"] == expected(LENGTHS[number], number)


async def submit(session: aiohttp.ClientSession, url: str, lengths: list[int]) -> None:
    items = [item(number, length) for number, length in enumerate(lengths)]
    async with session.post(url + "/runs/run/requests", json={"requests": items}) as answer:
        assert answer.status == 202


async def test_a_killed_manager_loses_no_request_and_its_workers_come_back(tmp_path):
    port, journal = free_port(), tmp_path / "journal"
    seen: list[dict] = []
    async with aiohttp.ClientSession() as session:
        take = partial(take_samples, session, seen)
        slow = ("--interval", "0.005")
        async with (
            manager_process(port, journal) as (first, url),
            worker(url, tmp_path, is_direct=False, extra=slow),
        ):
            await submit(session, url, LENGTHS)
            await take(url, 5)
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
            async with manager_process(port, journal) as (_, again):
                assert again == url
                while len(seen) < len(LENGTHS):
                    await take(url, 1)
    assert_whole(seen)


async def test_a_call_sent_again_after_a_kill_goes_on_with_the_tokens_it_had(tmp_path):
    """The second manager's engines sample the missing tokens, not all of them again."""
    port, length = free_port(), 400
    journal, ready = tmp_path / "journal", ("journal_interval_s=0.1",)
    body = {"prompt": item(3, length)["prompt_token_ids"], "max_tokens": length, "request_id": "task/0:0"}
    body |= {"return_token_ids": True, "detokenize": False}
    async with aiohttp.ClientSession(headers={"X-Run": "run"}) as session:

        async def call(url: str) -> dict:
            async with session.post(url + "/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                return (await answer.json())["choices"][0]

        async with (
            manager_process(port, journal, *ready) as (first, url),
            worker(url, tmp_path, is_direct=False, extra=("--interval", "0.01")),
        ):
            lost = asyncio.ensure_future(call(url))
            await until(lambda: b'"digest"' in journal.with_name("journal-wal").read_bytes())
            os.kill(first.pid, signal.SIGKILL)
            await first.wait()
            with pytest.raises(aiohttp.ClientError):
                await lost
            async with manager_process(port, journal, *ready) as (_, again):
                assert again == url
                choice = await call(url)
                async with session.get(url + "/status") as answer:
                    sampled = (await answer.json())["tokens"]
    assert choice["token_ids"] == expected(length, 3)
    assert 0 < sampled < length


async def started(port: int, journal: Path) -> tuple[int, bytes, bytes]:
    """A manager that is not expected to serve: its exit status and its words."""
    words = (f"port={port}", f"journal={journal}", *WORDS)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rl_agent.cli", "manager", *words, stdout=PIPE, stderr=PIPE
    )
    output, problems = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output, problems


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a journal; the first manager goes on writing what the page shows of it."""
    files = (path for path in folder.glob("journal*") if not path.name.endswith(".history.jsonl"))
    return {path.name: path.read_bytes() for path in files}


async def test_a_journal_has_one_manager_and_a_second_one_changes_nothing(tmp_path):
    journal, link = tmp_path / "journal", tmp_path / "link"
    link.symlink_to(journal)
    port = free_port()
    async with aiohttp.ClientSession() as session, manager_process(port, journal) as (first, url):
        await submit(session, url, [20] * 5)
        before = contents(tmp_path)
        for other, path in ((port, journal), (0, link)):
            status, output, problems = await started(other, path)
            assert status == 75 and not output
            [line] = problems.decode().splitlines()
            assert f"is in use by process {first.pid} on " in line
        assert contents(tmp_path) == before
        await submit(session, url, [20] * 6)
    assert [row["id"] for row in read_journal(journal, "request")] == [f"r{number}" for number in range(6)]


async def test_a_port_that_is_taken_leaves_the_journal_as_it_is(tmp_path):
    journal, other = tmp_path / "journal", tmp_path / "other"
    port = free_port()
    async with manager_process(port, other):
        with closing(sqlite3.connect(journal)) as database:
            database.execute("CREATE TABLE run(name TEXT)")
        before = journal.read_bytes()
        status, _, problems = await started(port, journal)
        assert status == 69 and f"port={port} is in use" in problems.decode()
        assert len(problems.splitlines()) == 1
        assert journal.read_bytes() == before
        assert not list(tmp_path.glob("journal*quarantine"))


async def test_a_manager_ends_soon_whoever_waits_for_it(tmp_path):
    """Long polls get their answer; what cannot be answered any more is cut."""
    async with (
        aiohttp.ClientSession() as session,
        manager_process(free_port(), tmp_path / "journal") as (process, url),
        aiohttp.ClientSession() as engine,
    ):
        await submit(session, url, [20] * 3)
        secret = {ENGINE_SECRET: "a secret of twenty c"}
        joining = {"name": "e", "has_worker": True}
        async with engine.post(url + "/engines", json=joining, headers=secret) as answer:
            assert answer.status == 201
        tunnel = await engine.ws_connect(url + "/engines/e/tunnel", headers=secret)
        poll = asyncio.ensure_future(session.get(url + "/runs/run/samples?min=3&wait_s=600"))
        call = asyncio.ensure_future(session.post(url + "/v1/completions", json={"prompt": [1]}))
        idle = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        async with session.get(url + "/status") as answer:
            assert (await answer.json())["requests"]["open"] == 4  # so both wait
        began = monotonic()
        process.terminate()
        assert await process.wait() == 0
        assert monotonic() - began < 3.0
        assert await (await poll).read() == b""
        with pytest.raises(aiohttp.ClientError):
            await call
        idle[1].close()
        await tunnel.close()
