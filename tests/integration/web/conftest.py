"""A real browser for each module of tests, ended with it."""

import contextlib
from pathlib import Path

import pytest
import pytest_asyncio

from rl_agent.env.guard import descendants
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.env.web.settings import WebSettings, find_chromium
from rl_agent.types import Task
from tests.integration.lacking import skip_lacking

HOSTILE = str(Path(__file__).parent / "hostile_site")
SMALL = {"width": 320, "height": 240, "sites": {"hostile": HOSTILE}, "action_timeout_s": 3.0}


@pytest.fixture(autouse=True, scope="session")
def chromium():
    """The tests of this folder need a browser; the set-up installs one."""
    try:
        find_chromium(WebSettings())
    except LookupError as error:
        skip_lacking(str(error))


@pytest_asyncio.fixture(loop_scope="module")
async def web(browsers):
    """Make environments; all of them end with the test."""
    environments = []

    def make(**kwargs):
        environments.append(WebEnvironment(**(SMALL | kwargs)))
        return environments[-1]

    yield make
    for environment in environments:
        await environment.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browsers(chromium):
    """End the browsers with the last test of a module; nothing that they started is left."""
    yield
    browsers = [browser for shared in WebEnvironment._shared.values() for browser in shared._all]
    pids = [pid for browser in browsers for pid in (browser.pid, *descendants(browser.pid))]
    await WebEnvironment.close_shared()
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid):
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def hostile(page, **extra):
    return Task(f"hostile-{page}", "Say yes.", "web", "easy", extra={"site": "hostile", "page": page} | extra)


def miniwob(name, seed=1):
    return Task(f"{name}-{seed}", "Do it.", "web", "easy", extra={"miniwob": name, "seed": seed})


def shop(goal, seed=1):
    return Task(f"{goal}-{seed}", "Do it.", "web", "easy", extra={"site": "shop", "goal": goal, "seed": seed})
