"""The tasks of MiniWoB++: which there are, and how their pages begin, tell the goal and pay.

The pages are those of the package `miniwob` (MIT), which is found and not imported. Left out are the
tasks that the package marks as nondeterministic, those that it does not register, and those that show
whole sites of airlines.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

HOST = "miniwob.test"
WIDTH, HEIGHT = 160, 210
"""The size of the pages, in pixels."""

_NONDETERMINISTIC = frozenset(
    {
        "book-flight", "book-flight-nodelay", "choose-date", "choose-date-easy", "choose-date-medium",
        "choose-date-nodelay", "click-dialog", "click-dialog-2", "click-pie", "click-pie-nodelay",
        "click-scroll-list", "drag-cube", "scroll-text", "scroll-text-2", "search-engine", "social-media",
        "social-media-all", "social-media-some", "terminal", "order-food", "phone-book", "stock-market",
    }
)  # fmt: skip
"""The tasks that miniwob 1.1.0 marks as nondeterministic."""
_UNREGISTERED = frozenset({"button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says"})
"""Pages that miniwob 1.1.0 has but no task of: what they show depends on the clock."""

BEGIN = """(seed) => {
  Math.seedrandom(seed);
  core.EPISODE_MAX_TIME = 1e6;
  core.startEpisodeReal();
}"""
"""Draws the task of a seed, on a page that showed another one too."""
_HIDE = """
  #reward-display, #click-canvas, #sync-task-cover { display: none !important; }
  #query, #query * { visibility: hidden !important; }
  * { caret-color: transparent !important; }
"""
_GOAL = f"""async ([seed, style]) => {{
  document.head.appendChild(document.createElement("style")).textContent = style;
  ({BEGIN})(seed);
  while (!WOB_TASK_READY) await new Promise(requestAnimationFrame);
  return core.getUtterance();
}}"""
"""Starts an episode and returns its goal in one round trip."""
_OUTCOME = "() => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


@cache
def pages_folder() -> Path | None:
    """Return the folder of the pages; None where the package is not installed."""
    spec = importlib.util.find_spec("miniwob")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place).resolve() / "html"
        if folder.is_dir():
            return folder
    return None


@cache
def task_names() -> tuple[str, ...]:
    """Return the names of all deterministic tasks; none where the package is not installed."""
    folder = pages_folder()
    names = sorted(page.stem for page in (folder / "miniwob").glob("*.html")) if folder else []
    return tuple(name for name in names if name not in _NONDETERMINISTIC | _UNREGISTERED)


def check_name(name: object) -> None:
    """Raises ValueError unless this is the name of a task that can be run here."""
    if pages_folder() is None:
        raise ValueError("miniwob: the package is not installed; pip install rl-agent[web]")
    if isinstance(name, str) and name in _NONDETERMINISTIC | _UNREGISTERED:
        raise ValueError(f"miniwob is {name!r}, which differs between attempts; use another task")
    if name not in task_names():
        raise ValueError(
            f"miniwob is {name!r}; use one of the {len(task_names())} tasks, such as click-button"
        )


def url_of(name: str) -> str:
    """Return the address of a task's page."""
    return f"http://{HOST}/miniwob/{name}.html"


async def begin(page: Any, seed: int) -> str:
    """Draw the task of a seed on its loaded page, and return the goal."""
    goal: str = await page.evaluate(_GOAL, [str(seed), _HIDE])
    return goal


async def outcome(page: Any) -> float | None:
    """Return the reward, from 0 to 1 for all of it, if the task is over."""
    is_done, paid = await page.evaluate(_OUTCOME)
    return min(max(float(paid), 0.0), 1.0) if is_done else None
