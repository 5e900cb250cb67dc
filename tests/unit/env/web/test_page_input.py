"""Coordinates from 0 to 1000 become pixels of a page, and actions become input."""

import pytest

from rl_agent.env.web.actions import MAX_COORDINATE, WebAction
from rl_agent.env.web.page_input import PageInput


class Device:
    def __init__(self, done, name):
        self.done, self.name = done, name

    def __getattr__(self, verb):
        async def do(*arguments, **named):
            self.done.append((f"{self.name}.{verb}", *arguments, *named.values()))

        return do


class Page:
    def __init__(self):
        self.done = []
        self.mouse, self.keyboard = Device(self.done, "mouse"), Device(self.done, "keyboard")


async def done(action):
    page = Page()
    await PageInput(200, 100).do(page, action)
    return page.done


@pytest.mark.parametrize("point", [(0, 0), (500, 500), (MAX_COORDINATE, MAX_COORDINATE)])
def test_every_point_lies_inside_the_page_and_comes_back(point):
    page_input = PageInput(1280, 720)
    x, y = page_input.pixels(point)
    assert 0 <= x <= 1279 and 0 <= y <= 719
    assert page_input.point(x, y) == pytest.approx(point, abs=2)
    assert page_input.point(1e9, -5) == (MAX_COORDINATE, 0)


async def test_actions_are_what_a_person_would_do():
    assert await done(WebAction("click", at=(500, 500))) == [("mouse.click", 100.0, 50.0)]
    assert (await done(WebAction("double_click", at=(0, 0))))[0][:3] == ("mouse.dblclick", 0.0, 0.0)
    assert await done(WebAction("hover", at=(0, 0))) == [("mouse.move", 0.0, 0.0)]
    drag = await done(WebAction("drag", at=(0, 0), to=(500, 0)))
    assert [verb for verb, *_ in drag] == ["mouse.move", "mouse.down", "mouse.move", "mouse.up"]
    assert await done(WebAction("key", text="Tab")) == [("keyboard.press", "Tab")]
    assert await done(WebAction("scroll", text="down", number=1)) == [
        ("mouse.move", 100.0, 50.0),
        ("mouse.wheel", 0.0, 60.0),
    ]


async def test_typing_clicks_clears_types_and_enters_in_this_order():
    action = WebAction("type", at=(0, 0), text="a b", clear=True, enter=True)
    assert await done(action) == [
        ("mouse.click", 0.0, 0.0),
        ("keyboard.press", "Control+a"),
        ("keyboard.press", "Delete"),
        ("keyboard.type", "a b"),
        ("keyboard.press", "Enter"),
    ]


async def test_action_without_mouse_or_keyboard_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="goto is not an input of mouse or keyboard"):
        await done(WebAction("goto", text="http://x"))
