"""A page's own doings beside the agent's actions are told in one line, and the episode goes on."""

import asyncio

import pytest

from .conftest import hostile

pytestmark = pytest.mark.asyncio(loop_scope="module")

GO = "click 500 500"


async def after_a_click(web, page, **extra):
    environment = web()
    await environment.reset(hostile(page, **extra), 0)
    result = await asyncio.wait_for(environment.step(GO), 60)
    assert not result.done and not result.truncated and result.observation.images
    lines = result.observation.text.splitlines()
    assert len(lines) <= 8 and all(len(line) <= 330 for line in lines)
    assert (await environment.step("wait 0")).observation.images
    return environment, result.observation.text


@pytest.mark.parametrize(
    ("page", "told", "url"),
    [
        ("alert", "the alert 'hello', which was accepted", "/alert"),
        ("confirm", "the confirm 'sure?', which was accepted", "/sure-true"),
        ("tab", "A new tab was opened", "/other"),
        ("outside", "evil.example was not opened", "/outside"),
        ("redirect", "evil.example was not opened", "/redirect"),
        ("file", "Goal", "/file"),
        ("to-file", "Goal", "/to-file"),
        ("download", "download", "/download"),
        ("upload", "asked for a file", "/upload"),
        ("unload", "Goal", "/other"),
    ],
)
@pytest.mark.extended
async def test_a_page_that_goes_its_own_ways_is_followed_or_refused(web, page, told, url):
    _, text = await after_a_click(web, page)
    assert told in text
    assert f"Page: http://hostile.test{url}" in text
    assert "root:" not in text


async def test_the_agents_own_tab_cannot_be_closed_for_good(web):
    for page in ("close-itself", "closes-at-once"):  # the browser refuses, as the page did not open this tab
        environment, text = await after_a_click(web, page)
        assert text == f"Goal: Say yes.\nPage: http://hostile.test/{page}"
    environment, text = await after_a_click(web, "opens-one-that-closes")
    assert "Page: http://hostile.test/close-itself\nA new tab was opened" in text
    back = "Page: http://hostile.test/opens-one-that-closes\nA tab was closed."
    assert back in (await environment.step(GO)).observation.text
    await environment._tabs.front.close()
    text = (await environment.step(GO)).observation.text
    assert "Page: http://hostile.test/opens-one-that-closes" in text
    assert "All tabs were closed. The first page was opened again." in text
    assert (await environment.step("answer yes")).reward == 1.0


async def test_a_dialog_a_new_tab_and_a_foreign_host_are_told(web):
    environment = web()
    for page, told in (
        ("alert", "the alert 'hello'"),
        ("tab", "new tab"),
        ("redirect", "evil.example was not"),
    ):
        await environment.reset(hostile(page), 0)
        assert told in (await environment.step(GO)).observation.text


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("alerts", "did not answer"),
        ("loop", "did not answer"),
        ("close", "closed"),
        ("crash", "Goal"),
        ("tabs", "tab"),
    ],
)
@pytest.mark.extended
async def test_a_page_that_never_stops_costs_itself_and_not_the_episode(web, page, told):
    environment, text = await after_a_click(web, page)
    assert told in text
    assert (await environment.step("answer yes")).reward == 1.0


@pytest.mark.extended
@pytest.mark.timeout(300)
async def test_a_page_that_takes_all_memory_loses_its_renderer(web):
    environment = web(max_page_mib=400, action_timeout_s=20)
    await environment.reset(hostile("large"), 0)
    texts = []
    for action in (GO, *["wait 2"] * 20):
        result = await environment.step(action)
        texts.append(result.observation.text)
        if "crashed" in texts[-1] or "did not answer" in texts[-1]:
            break
    assert "The first page was opened again" in texts[-1]
    assert (await environment.step("answer yes")).reward == 1.0


@pytest.mark.extended
async def test_no_page_and_no_agent_reaches_a_service_of_this_machine(web):
    reached = []

    async def answer(_reader, writer):
        reached.append(1)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for page in ("engine", "fetch"):
        environment, _ = await after_a_click(web, page, port=port)
    for action in (
        f"goto http://127.0.0.1:{port}/",
        f"goto http://localhost:{port}/",
        "goto file:///etc/passwd",
    ):
        assert "http://hostile.test/" in (await environment.step(action)).observation.text
    server.close()
    assert not reached
