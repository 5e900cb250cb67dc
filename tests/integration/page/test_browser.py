"""The page in a real Chromium: what is drawn equals the files, the keyboard is enough, axe-core is content.

With RL_AGENT_PAGE_SCREENSHOTS=FOLDER each view is also written there as a PNG, for those who write about it.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rl_agent.env.web.settings import find_chromium, settings_of
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.types import EpisodeKey, SeenContext
from tests.unit.page.stores import attempts, keep_png, record
from tests.unit.page.test_pool_view import sample, write_history
from tests.unit.page.test_trajectory_views import EVIL
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

REWARDS = [0.0, 0.25, 1.0]
VIEWS = {
    "run": "/runs/log/",
    "trajectories": "/runs/log/episodes",
    "siblings": "/runs/log/group?split=train&iteration=1&task=task-0&group=0",
    "episode": "/runs/log/episode?split=train&iteration=1&task=task-0&group=0&attempt=2&tokens=1",
    "pool": "/runs/log/pool",
}


def write_log(paths: RunPaths) -> None:
    """A run with numbers, time, a group with screenshots, a hostile episode, and a pool."""
    shots = [keep_png(paths, 400, 300, colour) for colour in ("white", "lightblue")]
    steps = tuple(
        replace(
            make_step(f"click {500 + 100 * n} 250", observation=f"page {n}", images=(shots[n % 2],)),
            seen=SeenContext("window", (), whole_from=max(0, n - 2)),
        )
        for n in range(6)
    )
    evil = make_trajectory(9, steps=(make_step(EVIL, observation=EVIL),), system_prompt=EVIL)
    evil = replace(evil, key=EpisodeKey(EVIL, 0, 0), task=replace(evil.task, task_id=EVIL, prompt=EVIL))
    record(paths, 1, *attempts(0, REWARDS, steps=steps), evil)
    for iteration, success in enumerate((0.5, 0.625, 0.875), start=1):
        line = {
            "iteration": iteration,
            "split": "test",
            "test/success_rate": success,
            "test/reward_mean": success,
        }
        metrics.append(paths.metrics, line)
    span = {"name": "rollout", "iteration": 1, "start": 100.0, "end": 160.0}
    paths.timeline.write_text(
        "".join(json.dumps(one) + "\n" for one in (span, {**span, "name": "update", "start": 130.0}))
    )
    came = {"at": 100.0, "engine": "spot-1", "id": "a", "state": "ready", "reason": "", "weight_version": 1}
    write_history(paths.log_path, came, sample(110.0), sample(170.0))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The real command over a log path."""
    paths = RunPaths(tmp_path_factory.mktemp("page") / "log")
    paths.log_path.mkdir()
    write_log(paths)
    words = [sys.executable, "-m", "rl_agent.cli", "page", "--log-path", str(paths.log_path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as page:
        try:
            yield page.stdout.readline().split()[-1]
        finally:
            page.terminate()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    try:
        path = find_chromium(settings_of())
    except LookupError as error:
        pytest.skip(str(error))
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


def test_the_curves_and_the_list_are_those_of_the_files(visit):
    page = visit(VIEWS["run"])
    words = page.locator(".chart").first.locator("circle title").all_text_contents()
    assert words == [
        f"evaluation: {value} at iteration {n}" for n, value in enumerate(("0.500", "0.625", "0.875"), 1)
    ]
    heights = [float(one.get_attribute("cy")) for one in page.locator(".chart").first.locator("circle").all()]
    assert (heights[0] - heights[1]) / (heights[1] - heights[2]) == pytest.approx(0.5, rel=0.01)
    page = visit(VIEWS["trajectories"] + "?order=reward,+lowest&task_id=task-0")
    assert page.locator("tbody td:nth-of-type(2) b").all_text_contents() == ["0", "0.250", "1"]


def test_the_click_lies_where_the_agent_clicked(visit):
    page = visit(VIEWS["episode"])
    shot, ring = (
        page.locator("#turn-1 .shot img").bounding_box(),
        page.locator("#turn-1 circle.ring").bounding_box(),
    )
    assert ring["x"] + ring["width"] / 2 == pytest.approx(shot["x"] + 0.6 * shot["width"], abs=2)
    assert ring["y"] + ring["height"] / 2 == pytest.approx(shot["y"] + 0.25 * shot["height"], abs=2)
    assert page.locator("#turn-1 img").evaluate("image => image.naturalWidth") == 400


def test_the_keyboard_alone_leads_from_the_list_to_a_turn_and_back(visit):
    page = visit(VIEWS["trajectories"])
    page.keyboard.press("/")
    page.keyboard.type("page")
    page.keyboard.press("Escape")
    page.goto(page.url.split("?")[0] + "?task_id=task-0&order=reward,+highest")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/episode?**attempt=2**")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.url.endswith("#turn-1")
    page.keyboard.press("p")
    page.wait_for_url("**attempt=1**")
    page.keyboard.press("u")
    page.wait_for_url("**/episodes?**")


def test_what_an_agent_wrote_runs_nowhere(visit, address):
    page = visit(VIEWS["trajectories"])
    page.get_by_role("link", name=EVIL[:20]).first.click()
    page.wait_for_selector("#turn-0")
    assert EVIL in page.locator("#turn-0 pre").first.text_content()
    assert page.locator("main script, main [onerror], main img").count() == 0
    assert (
        page.evaluate(
            "() => { try { document.body.innerHTML = '<p>'; return 'set' } catch { return 'refused' } }"
        )
        == "refused"
    )


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_a_narrow_window_and_axe_finds_no_fault(visit, view):
    from axe_playwright_python.sync_playwright import Axe

    for width, scheme in ((360, "dark"), (1280, "light")):
        page = visit(
            VIEWS[view], viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        faults = Axe().run(page).response["violations"]
        assert [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in faults] == []
        if folder := os.environ.get("RL_AGENT_PAGE_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{view}-{width}-{scheme}.png", full_page=True)
