"""Carries an action out with the mouse and the keyboard of a page."""

import asyncio
from typing import Any

from rl_agent.env.web.actions import MAX_COORDINATE, Point, WebAction

_DRAG_STEPS = 8
_DOUBLE_CLICK_MS = 30
_CLEAR = ("Control+a", "Delete")


class PageInput:
    """Turns coordinates from 0 to 1000 into pixels of one page size, and actions into input."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height

    def pixels(self, point: Point) -> tuple[float, float]:
        """Return the place of a point on the page, always inside it."""
        x, y = point
        return (
            min(x * self._width / MAX_COORDINATE, self._width - 1),
            min(y * self._height / MAX_COORDINATE, self._height - 1),
        )

    def point(self, x: float, y: float) -> tuple[int, int]:
        """Return the coordinates, whole numbers, of a place on the page."""
        return (
            max(0, min(MAX_COORDINATE, round(x * MAX_COORDINATE / self._width))),
            max(0, min(MAX_COORDINATE, round(y * MAX_COORDINATE / self._height))),
        )

    async def do(self, page: Any, action: WebAction) -> None:
        """Carry out an action that needs no more than mouse, keyboard or patience."""
        match action.name:
            case "click" | "double_click" | "hover":
                await self._point(page, action)
            case "drag":
                await self._drag(page, action)
            case "type":
                await self._type(page, action)
            case "key":
                await page.keyboard.press(action.text)
            case "scroll":
                await self._scroll(page, action)
            case "wait":
                await asyncio.sleep(action.number)
            case _:
                raise ValueError(f"{action.name} is not an input of mouse or keyboard")

    async def _point(self, page: Any, action: WebAction) -> None:
        x, y = self.pixels(action.at or (0, 0))
        if action.name == "hover":
            await page.mouse.move(x, y)
        elif action.name == "click":
            await page.mouse.click(x, y)
        else:
            await page.mouse.dblclick(x, y, delay=_DOUBLE_CLICK_MS)

    async def _drag(self, page: Any, action: WebAction) -> None:
        await page.mouse.move(*self.pixels(action.at or (0, 0)))
        await page.mouse.down()
        await page.mouse.move(*self.pixels(action.to or (0, 0)), steps=_DRAG_STEPS)
        await page.mouse.up()

    async def _type(self, page: Any, action: WebAction) -> None:
        if action.at is not None:
            await page.mouse.click(*self.pixels(action.at))
        if action.clear:
            for key in _CLEAR:
                await page.keyboard.press(key)
        await page.keyboard.type(action.text)
        if action.enter:
            await page.keyboard.press("Enter")

    async def _scroll(self, page: Any, action: WebAction) -> None:
        await page.mouse.move(*self.pixels(action.at or (MAX_COORDINATE / 2, MAX_COORDINATE / 2)))
        far = action.number * 0.6
        x, y = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[action.text]
        await page.mouse.wheel(x * far * self._width, y * far * self._height)
