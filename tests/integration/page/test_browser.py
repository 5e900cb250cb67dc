"""The page in a real Chromium: what is drawn equals the files, the keyboard is enough, axe-core is content.

With RL_AGENT_PAGE_SCREENSHOTS=FOLDER each view is also written there as a PNG, for those who write about it.
"""

import os
from pathlib import Path

import pytest
from PIL import Image

from tests.unit.page.test_trajectory_views import EVIL

CUT_OFF = """[...document.querySelectorAll("svg text")].filter(one => {
    const svg = one.ownerSVGElement.viewBox.baseVal, box = one.getBBox();
    return box.x < -1 || box.x + box.width > svg.width + 1 || box.y + box.height > svg.height + 1;
}).map(one => one.textContent)"""
"""Labels of diagrams that do not fit into them."""
VIEWS = {
    "run": "/runs/log/",
    "plot": "/runs/log/?plot=test/success_rate,+trainer/cost&smoothing=0.5&log=1",
    "trajectories": "/runs/log/episodes",
    "iteration": "/runs/log/episodes?iteration=1",
    "tasks": "/runs/log/tasks",
    "siblings": "/runs/log/group?split=train&iteration=1&task=task-0&group=0",
    "episode": "/runs/log/episode?split=train&iteration=1&task=task-0&group=0&attempt=2&tokens=1",
    "sample": "/runs/log/episode?split=train&iteration=1&task=task-0&group=0&attempt=2&tokens=sample",
    "pool": "/runs/log/pool",
    "compare": "/compare",
}


def test_the_curves_and_the_list_are_those_of_the_files(visit):
    page = visit(VIEWS["run"])
    words = page.locator(".chart").first.locator("circle title").all_text_contents()
    assert words == [
        f"evaluation: {value} at iteration {n}" for n, value in enumerate(("0.500", "0.625", "0.875"), 1)
    ]
    heights = [
        float(point.get_attribute("cy")) for point in page.locator(".chart").first.locator("circle").all()
    ]
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
    page.wait_for_function("document.querySelector('#turn-1 img').naturalWidth == 400")


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


def test_what_is_typed_into_a_form_outlives_a_refresh(visit):
    page = visit("/compare")  # which is refreshed while a run lives
    page.evaluate("main().innerHTML = '<form><input></form>'")
    page.locator("input").fill("trainer/")
    page.evaluate("main().dataset.refresh = '0.05'; schedule()")
    page.wait_for_timeout(500)
    assert page.locator("input").input_value() == "trainer/"
    with page.expect_response("**/compare"):
        page.locator("input").blur()


def test_an_agents_text_runs_nowhere(visit, address):
    page = visit(VIEWS["trajectories"])
    page.get_by_role("link", name=EVIL[:20]).first.click()
    page.wait_for_selector("#turn-0")
    assert EVIL in page.locator("#turn-0 pre").first.text_content()
    assert page.locator("main script, main [onerror], main img").count() == 0


@pytest.fixture
def screenshots(tmp_path):
    """The folder for pictures of the views: the one that was asked for, else one that goes."""
    folder = Path(os.environ.get("RL_AGENT_PAGE_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_a_narrow_window_and_axe_finds_no_fault(visit, view, screenshots):
    from axe_playwright_python.sync_playwright import Axe

    for width, scheme in ((360, "dark"), (1280, "light")):
        page = visit(
            VIEWS[view], viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(CUT_OFF) == []
        faults = Axe().run(page).response["violations"]
        assert [(fault["id"], fault["impact"], fault["nodes"][0]["html"][:200]) for fault in faults] == []
        picture = screenshots / f"{view}-{width}-{scheme}.png"
        page.screenshot(path=picture, full_page=True)
        with Image.open(picture) as drawn:
            assert drawn.width == width and len(drawn.convert("RGB").getcolors(2**24)) > 20
