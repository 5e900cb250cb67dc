"""What the page serves, and where it listens."""

import asyncio
import socket
from contextlib import closing

import aiohttp
import pytest
from yarl import URL

from rl_agent.errors import StoreError
from rl_agent.page.server import open_door, serve
from tests.unit.page.conftest import settings_for


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
        with closing(open_door(settings_for(tmp_path, port=None))) as door:
            assert not door.url.endswith(f":{taken.getsockname()[1]}")


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
