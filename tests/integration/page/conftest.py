"""The page of two runs, and one Chromium for all who look at it."""

import subprocess
import sys

import pytest

from rl_agent.env.web.settings import WebSettings, find_chromium
from tests.integration.lacking import skip_lacking
from tests.integration.page.made import write_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The log paths that the page shows."""
    return write_runs(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def address(runs):
    """The real command over the log paths."""
    words = [sys.executable, "-m", "rl_agent.cli", "page", "--port", "0"]
    words += [word for path in runs for word in ("--log-path", str(path))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as page:
        try:
            yield page.stdout.readline().split()[-1]
        finally:
            page.terminate()


@pytest.fixture(scope="module")
def chromium():
    """A browser that ends with the file: Playwright's loop would run on, and no other one beside it."""
    from playwright.sync_api import sync_playwright

    try:
        path = find_chromium(WebSettings())
    except LookupError as error:
        skip_lacking(str(error))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, address):
    """Return a function that opens a view; whatever a script could do to be noticed fails the test."""
    contexts, noticed = [], []

    def go(path: str, **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: (noticed.append(dialog.message), dialog.dismiss()))
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.on("request", lambda request: request.url.startswith(address) or noticed.append(request.url))
        page.goto(address + path)
        page.locator("progress").wait_for(
            state="detached", timeout=90_000
        )  # the page itself follows the index
        return page

    yield go
    for context in contexts:
        context.close()
    assert noticed == []
