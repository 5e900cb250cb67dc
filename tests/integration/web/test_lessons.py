"""The lessons of the web quickstart: what the scripted agent says of a page holds on a fresh one."""

import asyncio
import sys

import numpy as np
import pytest
from PIL import Image

from rl_agent.paths import PROJECT_ROOT

from .conftest import miniwob

sys.path.insert(0, str(PROJECT_ROOT / "data"))

import make_web_tasks
import web_lessons

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGES = 3


@pytest.mark.parametrize("name", make_web_tasks.QUICKSTART)
async def test_a_lessons_first_click_solves_the_page_that_is_pictured(web, name):
    screenshots, lessons = await web_lessons.collect_task(name, 5, PAGES, lambda: None)

    environment = web(action_timeout_s=60)
    for screenshot, lesson in zip(screenshots, lessons, strict=True):
        goal, click = lesson["asked"][0]
        seen = await environment.reset(miniwob(name, lesson["seed"]), 0)
        with Image.open(seen.images[0]) as image:
            assert np.array_equal(np.asarray(image.convert("RGB")), screenshot)
        assert seen.text == f"Goal: {goal}"
        result = await environment.step(click)
        assert (result.done, result.reward) == (True, 1.0)
    assert len({screenshot.tobytes() for screenshot in screenshots}) == PAGES


async def test_a_page_is_asked_about_at_most_four_things_each_once(web):
    _, lessons = await web_lessons.collect_task("click-widget", 5, 10, lambda: None)
    questions = [[goal for goal, _ in lesson["asked"]] for lesson in lessons]
    assert all(1 <= len(goals) == len(set(goals)) <= web_lessons.MAX_GOALS for goals in questions)
    assert max(map(len, questions)) > 1


async def test_a_goal_that_is_not_taught_is_asked_on_no_page(web):
    _, lessons = await web_lessons.collect_task("click-widget", 5, 20, lambda: None)
    assert len(lessons) == 20
    assert lessons[-1]["seed"] > 24  # some pages had it for their own goal
    questions = {goal for lesson in lessons for goal, _ in lesson["asked"]}
    kinds = ("radio", "checkbox", "text", "button")
    assert questions == {f'Click on a "{kind}" widget.' for kind in kinds}


async def test_lessons_that_are_there_are_not_collected_again(tmp_path, capsys):
    out = tmp_path / "lessons.npz"
    out.write_bytes(b"kept")
    await asyncio.to_thread(web_lessons.main, ["--out", str(out)])
    assert out.read_bytes() == b"kept" and "already collected" in capsys.readouterr().out
