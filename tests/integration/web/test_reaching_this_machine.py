"""No page reaches a service of this machine with allowed_hosts=[*], by whatever name, redirect or method."""

import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rl_agent.env.web.browser import Browsers
from rl_agent.env.web.settings import WebSettings

POST = "url => fetch(url, {method: 'POST', mode: 'no-cors', body: 'x'}).then(() => 'sent', () => 'refused')"


@asynccontextmanager
async def victim():
    """A service on all addresses of this machine; gives its port and what reached it."""
    reached = []

    async def answer(request):
        reached.append((request.method, request.path))
        if request.path == "/redirect":
            return web.Response(status=302, headers={"Location": request.query["to"]})
        return web.Response(text="secret")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    try:
        yield runner.addresses[0][1], reached
    finally:
        await runner.cleanup()


@asynccontextmanager
async def page_with(*allowed):
    browsers = Browsers(WebSettings(allowed_hosts=allowed))
    browser = await browsers.lease()
    context = await browser.new_context(320, 240, 1.0)
    try:
        yield await context.new_page(), await context.new_page()
    finally:
        await context.close()
        await browsers.give_back(browser)
        await browsers.close()


async def test_the_whole_web_does_not_include_this_machine_by_any_name():
    name = socket.gethostname()
    hosts = ("localhost", "localhost.", "a.localhost", "127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "0.0.0.0")
    hosts += (name, f"{name}.", socket.gethostbyname(name))
    async with victim() as (port, reached), page_with("*") as (page, quiet):
        for host in hosts:
            with pytest.raises(Exception, match="net::ERR_"):
                await page.goto(f"http://{host}:{port}/")
            assert await quiet.evaluate(POST, f"http://{host}:{port}/") == "refused"
        assert reached == []


async def test_a_named_host_is_reached_and_leads_to_no_other_address():
    async with victim() as (port, reached), page_with("localhost", "*") as (page, _):
        answer = await page.goto(f"http://localhost:{port}/")
        assert await answer.text() == "secret"
        for host in ("127.0.0.1", f"{socket.gethostname()}."):
            with pytest.raises(Exception, match="net::ERR_"):
                await page.goto(f"http://localhost:{port}/redirect?to=http://{host}:{port}/inside")
        assert {path for _, path in reached} <= {"/", "/redirect", "/favicon.ico"}
