"""A page over a log path, asked over real connections."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from rl_agent.http.tokens import TokenCheck
from rl_agent.page import index as index_module
from rl_agent.page.index import EpisodeIndex
from rl_agent.page.pool_view import AskManager
from rl_agent.page.server import Page, PageSettings
from rl_agent.paths import RunPaths
from tests.unit.page.stores import follow, text_of


def settings_for(
    *log_paths: Path,
    tokens: tuple[str, ...] = (),
    port: int | None = 0,
    ask_manager: AskManager | None = None,
) -> PageSettings:
    checked = TokenCheck(tokens, None)
    return PageSettings(log_paths, "127.0.0.1", port, checked, None, ask_manager=ask_manager)


@pytest.fixture
async def look():
    """Return a function that shows log paths and gives a client for them."""
    async with AsyncExitStack() as held:

        async def show(*log_paths: Path, **settings: Any) -> TestClient:
            page = Page(settings_for(*log_paths, **settings))
            held.callback(page.close)
            client = TestClient(TestServer(page.application()), cookie_jar=aiohttp.CookieJar(unsafe=True))
            return await held.enter_async_context(client)

        yield show


@pytest.fixture
def shown(look):
    """Return a function that gives the text of one view of these log paths."""

    async def text(*log_paths: Path, path: str = "/", **settings: Any) -> str:
        return await text_of(await look(*log_paths, **settings), path)

    return text


@pytest.fixture
def pool_of(shown):
    """Return a function that gives the view of a run's pool."""
    return lambda log_path: shown(log_path, path=f"/runs/{log_path.name}/pool")


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "log").mkdir()
    return RunPaths(tmp_path / "log")


@pytest.fixture
def opened(paths, monkeypatch):
    """Return a function that makes an index of the log path and brings it up to date."""
    monkeypatch.setattr(index_module, "LOOK_EVERY_S", 0.02)
    indexes = []

    def make() -> EpisodeIndex:
        indexes.append(EpisodeIndex(paths))
        follow(indexes[-1])
        return indexes[-1]

    yield make
    for index in indexes:
        index.close()
