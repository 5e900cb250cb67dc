"""The server of an agent's own sites: each copy is seen by its own episode alone."""

from types import SimpleNamespace

import aiohttp
import pytest

from rl_agent.env.web import server as module
from rl_agent.env.web.server import COOKIE, SiteServer
from rl_agent.env.web.site import SiteResponse


class Copy:
    def __init__(self, name):
        self.name, self.requests = name, []

    def respond(self, request):
        self.requests.append((request.method, request.path, request.query, request.form))
        if request.path == "/broken":
            raise KeyError("of the site's own code")
        if request.path == "/away":
            return SiteResponse("", location="/elsewhere")
        return SiteResponse(self.name)


@pytest.fixture
async def served(tmp_path, monkeypatch):
    """Ask the server as a browser does, by the name of a host and the cookie of an episode."""
    pages = tmp_path / "html"
    (pages / "miniwob").mkdir(parents=True)
    (pages / "miniwob" / "task.html").write_text("<p>task</p>")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(module, "pages_folder", lambda: pages)
    server = SiteServer((("shop", "a.module:Shop"),))
    port = await server.start()
    assert await server.start() == port

    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def ask(host, path, visit="", **more):
            headers = {"Host": host} | ({"Cookie": f"{COOKIE}={visit}"} if visit else {})
            method = "POST" if "data" in more else "GET"
            url = f"http://127.0.0.1:{port}{path}"
            async with session.request(method, url, headers=headers, allow_redirects=False, **more) as answer:
                return answer.status, await answer.text(), answer.headers

        yield SimpleNamespace(server=server, ask=ask)
    await server.close()


async def test_each_cookie_shows_its_own_copy_until_the_visit_ends(served):
    first, second = Copy("one"), Copy("other")
    visits = [served.server.admit(copy) for copy in (first, second)]
    assert (await served.ask("shop.test", "/?q=a", visits[0]))[:2] == (200, "one")
    status, text, headers = await served.ask("shop.test", "/buy", visits[1], data={"item": "7"})
    assert (status, text, headers["Cache-Control"]) == (200, "other", "no-store")
    assert first.requests == [("GET", "/", {"q": "a"}, {})]
    assert second.requests == [("POST", "/buy", {}, {"item": "7"})]
    served.server.forget(visits[0])
    assert (await served.ask("shop.test", "/", visits[0]))[0] == 403


@pytest.mark.parametrize("host", ["other.test", "127.0.0.1"])
async def test_no_site_is_shown_by_another_name_or_without_its_cookie(served, host):
    visit = served.server.admit(Copy("one"))
    assert (await served.ask(host, "/", visit))[0] == 403
    assert (await served.ask("shop.test", "/", "guessed"))[0] == 403


async def test_a_site_that_raises_or_redirects_is_an_ordinary_error_page(served):
    visit = served.server.admit(Copy("one"))
    assert (await served.ask("shop.test", "/broken", visit))[:2] == (500, "The site made an error.")
    status, _, headers = await served.ask("shop.test", "/away", visit)
    assert (status, headers["Location"]) == (303, "/elsewhere")


@pytest.mark.parametrize("path", ["/../secret", "/%2e%2e/secret", "/miniwob", "/none.html"])
async def test_only_files_of_the_tasks_pages_are_given(served, path):
    assert (await served.ask(module.MINIWOB_HOST, "/miniwob/task.html"))[:2] == (200, "<p>task</p>")
    assert (await served.ask(module.MINIWOB_HOST, path))[0] == 404
