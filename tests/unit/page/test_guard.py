"""Who may see the page, and what a browser is allowed to do with it."""

import asyncio
import socket
from contextlib import closing

import aiohttp
import pytest
from pydantic import ValidationError
from yarl import URL

from rl_agent.cli.page import main
from rl_agent.config import PageConfig
from rl_agent.errors import UsageError
from rl_agent.page.server import open_door, serve
from tests.unit.page.conftest import settings_for

OPEN = {"port": "auto", "host": "127.0.0.1", "token_file": None, "tls_certificate": None, "tls_key": None}


@pytest.mark.parametrize(
    "path", ["/", "/runs/x/", "/static/page.js", "/static/no.js", "/nothing", "/compare"]
)
async def test_every_answer_forbids_foreign_scripts_frames_and_guessed_types(tmp_path, look, path):
    client = await look(tmp_path, tmp_path / "..")
    answer = await client.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "a b"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
async def test_what_a_foreign_page_makes_a_browser_send_is_refused(tmp_path, look, headers):
    client = await look(tmp_path)
    assert (await client.get("/compare", headers=headers)).status == 403


async def test_a_link_from_elsewhere_leads_here(tmp_path, look):
    client = await look(tmp_path)
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await client.get("/compare", headers=sent)).status == 200


@pytest.mark.parametrize(
    "file", ["..%2fserver.py", "..%5cserver.py", "%2e%2e%2f%2e%2e%2fcli%2fpage.py", "page.css%00"]
)
async def test_only_our_own_files_are_static(tmp_path, look, file):
    client = await look(tmp_path)
    path = URL(f"/static/{file}", encoded=True)
    assert (await client.get(path, allow_redirects=False)).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(tmp_path, look, method):
    client = await look(tmp_path)
    for path in ("/", "/compare", f"/runs/{tmp_path.name}/"):
        assert (await client.request(method, path)).status == 405


async def test_with_a_token_only_those_who_gave_it_see_anything(tmp_path, look):
    (tmp_path / "secret-run").mkdir()
    client = await look(tmp_path / "secret-run", tokens=("right", "also"))
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "rl_agent_page=wrong"}):
        answer = await client.get("/compare", headers=headers)
        text = await answer.text()
        assert answer.status == 401 and "secret-run" not in text and 'name="token"' in text
    assert (await client.get("/compare", headers={"Authorization": "Bearer right"})).status == 200

    wrong = await client.post("/login", data={"token": "wrong"}, allow_redirects=False)
    assert wrong.status == 401 and "Set-Cookie" not in wrong.headers
    right = await client.post("/login", data={"token": " also "}, allow_redirects=False)
    assert right.status == 303 and right.headers["Location"] == "/"
    cookie = right.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    answer = await client.get("/compare")
    assert answer.status == 200 and "secret-run" in await answer.text()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"host": "0.0.0.0"}, "token_file, tls_certificate and tls_key"),
        ({"host": "0.0.0.0", "token_file": "/t"}, "token_file, tls_certificate and tls_key"),
        ({"tls_certificate": "/c"}, "go together"),
        ({"port": 0}, "1"),
        ({"port": "on"}, "auto"),
    ],
)
def test_a_page_that_others_reach_needs_a_token_and_tls(given, named):
    with pytest.raises(ValidationError, match=named):
        PageConfig.model_validate({**OPEN, "allowed_hosts": [], **given})


def test_off_means_off_although_yaml_reads_it_as_false():
    assert PageConfig.model_validate({**OPEN, "allowed_hosts": [], "port": False}).port == "off"


def test_the_command_refuses_what_the_configuration_refuses(tmp_path):
    with pytest.raises(UsageError, match="can be reached by others"):
        main(["--log-path", str(tmp_path), "--host", "0.0.0.0"])
    with pytest.raises(UsageError, match="--log-path, or --plan"):
        main([])


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
