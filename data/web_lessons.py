#!/usr/bin/env python
"""Collect lessons for a vision model: MiniWoB pages in a real Chromium, and where a scripted agent clicks.

    python data/web_lessons.py --out quickstart-web/lessons.npz --seed 0

A page is shown for each seed, and the scripted agent is asked for the click of each goal that the page could
have: its own first, then up to three others, such as the other buttons of `click-button`. Its clicks are
moved to a grid, so that a model needs few tokens for them. One kind of widget is never asked for, and nobody
sees a page whose own goal it is: a model can find it by exploration alone. No seed here is one of a task
that `make_web_tasks.py` writes. The file appears complete or not at all, and a second call returns at once.
"""

import rl_agent.system.interrupts  # noqa: F401 - Ctrl+C while the rest is loaded

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from make_web_tasks import QUICKSTART, miniwob_line
from miniwob_oracles import ORACLES, Oracle
from PIL import Image

from rl_agent.env.web import miniwob
from rl_agent.env.web.actions import MAX_COORDINATE, read_action
from rl_agent.env.web.element_finder import ElementFinder
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.system.flag_parser import FlagParser
from rl_agent.types import Task

GRID = 20
"""Coordinates are multiples of it: 3.2 pixels across, 4.2 down."""
MAX_GOALS = 4
FIRST_SEED = 1 << 40
PAGES = 600
"""Pages of each task."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """The question about a page, and the function that knows its answer."""

    goals: str
    """JavaScript: the list of all goals that the page could have."""
    oracle: Oracle


def _of_each(selector: str, goal: str) -> str:
    return f"[...document.querySelectorAll('#area {selector}')].map((one, n) => {goal})"


LESSONS = {
    "click-widget": Lesson(
        _of_each("[data-type]", '`Click on a "${one.dataset.type}" widget.`'), ORACLES["click-widget"]
    ),
    "click-button": Lesson(
        _of_each("button", '`Click on the "${one.textContent}" button.`'), ORACLES["click-button"]
    ),
    "focus-text-2": Lesson(
        _of_each("input", "`Focus into the ${['1st', '2nd', '3rd'][n]} input textbox.`"),
        ORACLES["focus-text-2"],
    ),
    "identify-shape": Lesson("[]", ORACLES["identify-shape"]),
}
"""Lessons of each task of the quickstart."""
UNTAUGHT = 'Click on a "textarea" widget.'
"""A goal of the quickstart's tasks that no lesson has."""


def on_grid(action: str) -> str:
    """Return a click moved to the grid. Raises ValueError if the action is no click."""
    click = read_action(action)
    if click.name != "click" or click.at is None:
        raise ValueError(f"{action!r} is no click")
    x, y = (min(round(part / GRID) * GRID, MAX_COORDINATE) for part in click.at)
    return f"click {x} {y}"


async def lesson_of(
    environment: WebEnvironment, lesson: Lesson, seed: int
) -> tuple[list[list[str]], Path] | None:
    """Show the page of a seed; return goals with their clicks, the page's own first, and its screenshot.

    Returns None for a page whose own goal is not to be taught.
    """
    script = f"(seed) => {{ ({miniwob.BEGIN})(seed); return [core.getUtterance(), ...{lesson.goals}]; }}"
    own, *others = await environment.query(script, str(seed))
    if own == UNTAUGHT:
        return None
    goals = [goal for goal in dict.fromkeys([own, *others]) if goal != UNTAUGHT][:MAX_GOALS]
    finder = ElementFinder(environment)
    pairs = [[goal, on_grid(await anext(aiter(lesson.oracle(finder, goal))))] for goal in goals]
    (screenshot,) = (await environment.step("wait 0")).observation.images
    return pairs, Path(screenshot)


async def collect_task(
    name: str, first_seed: int, pages: int, report: Callable[[], None]
) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    """Return the screenshots of a task's pages, (210, 160, 3) of uint8 each, and their lessons."""
    environment = WebEnvironment()
    line = miniwob_line(name, first_seed)
    task = Task(line["task_id"], line["prompt"], "web", "easy", extra={"miniwob": name, "seed": first_seed})
    screenshots: list[np.ndarray] = []
    lessons: list[dict[str, Any]] = []
    seeds = itertools.count(first_seed)
    try:
        await environment.reset(task, 0)
        while len(lessons) < pages:
            seed = next(seeds)
            shown = await lesson_of(environment, LESSONS[name], seed)
            if shown is None:
                continue
            pairs, path = shown
            with Image.open(path) as image:
                screenshots.append(np.asarray(image.convert("RGB")))
            path.unlink()
            lessons.append({"task": name, "seed": seed, "asked": pairs})
            report()
    finally:
        await environment.close()
    return screenshots, lessons


async def collect(pages: int, first_seed: int, report: Callable[[], None]) -> dict[str, Any]:
    """Collect all tasks side by side; `pages` of each."""
    try:
        async with asyncio.TaskGroup() as group:
            jobs = [
                group.create_task(collect_task(name, first_seed, pages, report), name=name)
                for name in QUICKSTART
            ]
    finally:
        await WebEnvironment.close_shared()
    results = [job.result() for job in jobs]
    turns = range(pages)  # the tasks take turns, so that any part of the file has all of them
    return {
        "screenshots": np.stack([screenshots[n] for n in turns for screenshots, _ in results]),
        "lessons": json.dumps([lessons[n] for n in turns for _, lessons in results]),
    }


def main(argv: list[str] | None = None) -> None:
    parser = FlagParser(description=__doc__, prog="web_lessons.py")
    parser.add_argument("--out", type=Path, required=True, help="file of the lessons (.npz)")
    parser.add_argument("--seed", type=int, default=0, help="another seed shows other pages (default 0)")
    parser.add_argument("--pages", type=int, default=PAGES, help=f"pages of each task (default {PAGES})")
    arguments = parser.parse_args(argv)
    if arguments.out.is_file():
        print(f"{arguments.out}: already collected")
        return
    total = arguments.pages * len(QUICKSTART)
    print(f"collecting {total} pages of {len(QUICKSTART)} tasks in Chromium", flush=True)
    started = last = time.monotonic()
    done = 0

    def report() -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if now - last >= 5 or done == total:
            last = now
            print(f"  {done:5d} pages  {now - started:4.0f} s", flush=True)

    first_seed = FIRST_SEED + arguments.seed * 1_000_000
    collected = asyncio.run(collect(arguments.pages, first_seed, report))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.out.with_name(f".{arguments.out.name}.partial.npz")
    np.savez_compressed(partial, **collected)
    partial.rename(arguments.out)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
