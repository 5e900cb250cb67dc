"""The page serves its views, and listens at one address."""

import asyncio
import socket
import threading
from contextlib import closing

import aiohttp
import pytest
from yarl import URL

from rl_agent.errors import StoreError
from rl_agent.page.server import open_listener, serve
from tests.unit.page.conftest import settings_for
from tests.unit.page.test_pool_view import sample, write_history


@pytest.mark.parametrize(
    "file", ["..%2fserver.py", "..%5cserver.py", "%2e%2e%2f%2e%2e%2fcli%2fpage.py", "page.css%00"]
)
async def test_only_our_own_files_are_static(tmp_path, look, file):
    client = await look(tmp_path)
    path = URL(f"/static/{file}", encoded=True)
    assert (await client.get(path, allow_redirects=False)).status == 404


async def test_where_the_usual_port_is_taken_the_page_takes_another(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr("rl_agent.page.server.DEFAULT_PORT", taken.getsockname()[1])
        with closing(open_listener(settings_for(tmp_path, port=None))) as listener:
            assert not listener.url.endswith(f":{taken.getsockname()[1]}")


async def test_it_serves_at_its_port_until_it_is_told_to_leave(tmp_path):
    leaving, urls = asyncio.Event(), asyncio.Queue()
    async with asyncio.TaskGroup() as jobs, asyncio.timeout(20):
        jobs.create_task(serve(settings_for(tmp_path), urls.put_nowait, leaving))
        url = await urls.get()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/") as answer:
            assert answer.status == 200
        leaving.set()


@pytest.mark.parametrize(("error", "status"), [(ValueError("<b>odd"), 500), (StoreError("<b>odd"), 503)])
async def test_a_view_that_cannot_be_made_says_why_and_the_others_stay(
    tmp_path, look, monkeypatch, error, status
):
    def fails(*_):
        raise error

    monkeypatch.setattr("rl_agent.page.run_view.run_values", fails)
    client = await look(tmp_path)
    answer = await client.get("/")
    html = await answer.text()
    assert answer.status == status and "&lt;b&gt;odd" in html and "Trajectories" in html
    assert (await client.get(f"/runs/{tmp_path.name}/pool")).status == 200


def nested(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth):
        value = {"a": value}
    return value


ANSWERS = {
    "a list": [1, 2],
    "nothing": None,
    "words": "<script>alert(1)</script>",
    "another status": {"engines": 7, "<script>": "<script>alert(1)</script>"},
    "nested": nested(20_000),
    "long": {"engines": ["x" * 1000] * 8000},
    "half a character": {"a": "\ud800"},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_a_manager_that_lies_or_answers_rubbish_costs_its_status_alone(tmp_path, look, answer):
    write_history(tmp_path, sample(1.0))
    client = await look(tmp_path, ask_manager=lambda: answer)
    shown = await client.get(f"/runs/{tmp_path.name}/pool")
    html = await shown.text()
    assert shown.status == 200 and "spot-1" in html and "<script>" not in html and len(html) < 2**20


async def test_a_hanging_manager_delays_the_first_view_by_a_second_and_no_other(tmp_path, look):
    write_history(tmp_path, sample(1.0))
    requests, go_on = [], threading.Event()

    def ask() -> dict:
        requests.append(1)
        go_on.wait(60)
        return {}

    client = await look(tmp_path, ask_manager=ask)
    try:
        async with asyncio.timeout(30):  # each would wait for a minute
            for number in range(8):
                assert (await client.get(f"/runs/{tmp_path.name}/pool?look={number}")).status == 200
        assert len(requests) == 1
    finally:
        go_on.set()
