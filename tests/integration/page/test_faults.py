"""The real page while a run writes, many look, and its disk is full."""

import asyncio
import json
import resource
import subprocess
import sys
from contextlib import contextmanager

import aiohttp

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from tests.unit.page.stores import address, attempts, record
from tests.unit.page.test_pool_view import sample, write_history
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

VIEWS = ("/runs/log/", "/runs/log/pool", "/runs/log/episodes", "/runs/log/episodes?text=page", address())
READERS, ROUNDS = 10, 6


@contextmanager
def page_of(paths: RunPaths, max_file_bytes: int = resource.RLIM_INFINITY):
    """The address of the real command, which can write no longer files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

    words = [sys.executable, "-m", "rl_agent.cli", "page", "--log-path", str(paths.log_path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=limit) as page:
        try:
            yield page.stdout.readline().split()[-1]
            assert page.poll() is None, "it has ended"
        finally:
            page.terminate()


async def until_shown(session: aiohttp.ClientSession, view: str, words: str) -> str:
    """Ask for a view until it has these words."""
    async with asyncio.timeout(90):
        while True:
            async with session.get(view) as answer:
                html = await answer.text()
                assert answer.status == 200, html
            if words in html:
                return html
            await asyncio.sleep(0.2)


async def test_ten_readers_see_whole_views_while_the_run_writes(tmp_path):
    paths = RunPaths(tmp_path / "log")
    record(paths, 1, *attempts(0, [0.0, 1.0], steps=(make_step("click 1 2", observation="page one"),)))
    written, statuses = 1, []

    def write() -> None:
        nonlocal written
        written += 1
        record(paths, written, make_trajectory(written, iteration=written, reward=0.5))
        metrics.append(paths.metrics, {"iteration": written, "split": "test", "test/success_rate": 0.5})
        write_history(paths.log_path, *(sample(float(n)) for n in range(written)))
        with paths.timeline.open("a") as file:
            span = {"name": "rollout", "iteration": written, "start": written, "end": written + 1}
            file.write(json.dumps(span) + "\n")

    async def read(session: aiohttp.ClientSession, number: int) -> None:
        for count in range(ROUNDS):
            view = VIEWS[(number + count) % len(VIEWS)]
            async with session.get(view) as answer:
                html = await answer.text()
                statuses.append((answer.status, view))
                assert answer.status == 200 and html.rstrip().endswith("</html>"), (view, html[-200:])

    with page_of(paths) as url:
        async with aiohttp.ClientSession(url) as session:
            await until_shown(session, VIEWS[-1], "page one")  # it is indexed
            async with asyncio.TaskGroup() as jobs:
                readers = [jobs.create_task(read(session, number)) for number in range(READERS)]
                while not all(reader.done() for reader in readers):
                    await asyncio.to_thread(write)
                    await asyncio.sleep(0.05)
            assert len(statuses) == READERS * ROUNDS
            total = f'<b id="total">{written + 1:,}</b>'
            await until_shown(session, "/runs/log/episodes", total)
            await until_shown(session, "/runs/log/", f"0.500 at iteration {written}")


async def test_without_room_for_the_index_the_list_reports_it_and_others_work(tmp_path):
    paths = RunPaths(tmp_path / "log")
    record(paths, 1, *(make_trajectory(n, steps=(make_step("x" * 500),)) for n in range(40)))
    metrics.append(paths.metrics, {"iteration": 1, "split": "test", "test/success_rate": 0.5})
    write_history(paths.log_path, sample(1.0), sample(2.0))
    with page_of(paths, max_file_bytes=4096) as url:
        async with aiohttp.ClientSession(url) as session:
            await until_shown(session, "/runs/log/episodes", 'role="alert"')
            await until_shown(session, "/runs/log/", "0.500 at iteration 1")
            await until_shown(session, "/runs/log/pool", "spot-1")
