"""Viewers need a token, and a browser is allowed little with the page."""

import pytest


@pytest.mark.parametrize(
    "path", ["/", "/runs/x/", "/static/page.js", "/static/no.js", "/nothing", "/compare"]
)
async def test_every_answer_forbids_foreign_scripts_frames_and_guessed_types(tmp_path, look, path):
    client = await look(tmp_path, tmp_path / "..")
    answer = await client.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
async def test_requests_that_a_foreign_page_makes_a_browser_send_are_refused(tmp_path, look, headers):
    client = await look(tmp_path)
    assert (await client.get("/compare", headers=headers)).status == 403


async def test_a_link_from_elsewhere_leads_here(tmp_path, look):
    client = await look(tmp_path)
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await client.get("/compare", headers=sent)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(tmp_path, look, method):
    client = await look(tmp_path)
    for path in ("/", "/compare", f"/runs/{tmp_path.name}/"):
        assert (await client.request(method, path)).status == 405


async def test_with_a_token_only_its_holders_see_anything(tmp_path, look):
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
