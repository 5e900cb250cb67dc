"""Defines a site of one's own: a folder with `site.py`, whose class `Site` answers the browser's requests.

    Site(task, seed) ─► respond(request) ─► respond(request) ─► … ─► reward(answer) is not None: the end

Every episode has a `Site` of its own, so that nothing is left of the one before; what it draws, it draws
from the seed. The agent sees it at `http://NAME.test/`, reached by no other browser and by no other
episode.
"""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rl_agent.types import Task


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """A request that the browser makes to a site."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteResponse:
    """A site's answer: a page, or with `location` a redirect."""

    body: str = ""
    content_type: str = "text/html"
    status: int = 200
    location: str | None = None


class Site(Protocol):
    """One episode's copy of a site. A method takes less than a millisecond or so: all episodes wait for it.

    A class may also have `check_task(task)`, which raises ValueError for a task that it cannot show, and its
    instances a text `goal`, which the agent reads instead of the task's prompt.
    """

    start: str
    """The path of the first page, such as `/`."""

    def __init__(self, task: Task, seed: int) -> None: ...

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Answer a request of the browser."""
        ...

    def reward(self, answer: str | None) -> float | None:
        """Return the episode's reward if it is over, else None; called after each action.

        `answer` is what the agent gave as its answer. That ends the episode, and None counts as 0.
        """
        ...


def load_site(name: str, folder: str) -> type[Site]:
    """Return the class `Site` of a folder's `site.py`. Raises ValueError that names the file."""
    path = Path(folder) / "site.py"
    module_name = f"rl_agent_site_{name}"
    loaded = sys.modules.get(module_name)
    if loaded is None or getattr(loaded, "__file__", None) != str(path):
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{path}: cannot be loaded")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = loaded  # dataclasses look their module up
        try:
            spec.loader.exec_module(loaded)
        except Exception as error:  # a module may raise anything while it is loaded
            del sys.modules[module_name]
            raise ValueError(f"{path}: {type(error).__name__}: {error}".splitlines()[0]) from error
    site_class: type[Site] | None = getattr(loaded, "Site", None)
    missing = [method for method in ("respond", "reward") if not callable(getattr(site_class, method, None))]
    if site_class is None or missing:
        raise ValueError(f"{path}: its class Site lacks {' and '.join(missing)}")
    return site_class
