"""Web pages as an environment: a screenshot and a few lines are seen, mouse and keyboard act.

A task names what it is about, one of

    "miniwob": "click-button"          a task of MiniWoB++
    "site": "shop"                     a site of one's own, see `site`
    "url": "https://example.org"       a page of the web, inside `allowed_hosts`

With a `seed` every attempt begins in the same state; without, the seed of the attempt decides. The goal
is what a page of MiniWoB or a site tells itself, else the prompt.
"""

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rl_agent.env.values import settings_from
from rl_agent.env.web import miniwob
from rl_agent.env.web.actions import InvalidAction, WebAction, read_action
from rl_agent.env.web.browser import Browser, Browsers
from rl_agent.env.web.hosts import is_allowed
from rl_agent.env.web.page_input import PageInput
from rl_agent.env.web.server import COOKIE
from rl_agent.env.web.settings import WebSettings, find_chromium
from rl_agent.env.web.site import Site, load_site
from rl_agent.env.web.tab import PageLost, Tabs
from rl_agent.env.web.tools import TOOLS
from rl_agent.errors import EnvironmentFailure, EnvironmentRefusal, EnvironmentUnavailable, first_line
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Observation, StepResult, Task

_MAX_REPLACED = 3
"""The number of stuck pages after which an episode ends."""
_MAX_URL = 300


class WebEnvironment:
    """One episode at a time in a context of the browser that all instances of this process share."""

    _shared: ClassVar[dict[WebSettings, Browsers]] = {}

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._settings = settings_from(WebSettings, kwargs)
        self._browser: Browser | None = None
        self._browsers: Browsers | None = None
        self._tabs: Tabs | None = None
        self._page_input = PageInput(self._settings.width, self._settings.height)
        self._task: Task | None = None
        self._site: Site | None = None
        self._visit: str | None = None
        self._goal: str | None = None
        self._seed = 0
        self._pictures: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0
        self._replaced = 0
        self._seen: tuple[bytes, str] = (b"", "")

    @staticmethod
    def tools(task: Task) -> list[dict[str, Any]]:
        """Return the actions as the JSON schemas of tools."""
        return TOOLS

    @staticmethod
    def check_settings(**kwargs: Any) -> None:
        """Raises ValueError for a wrong key, EnvironmentUnavailable if this machine has no browser."""
        try:
            find_chromium(settings_from(WebSettings, kwargs))
        except LookupError as error:
            raise EnvironmentUnavailable(f"web pages cannot be shown here: {error}") from None

    @staticmethod
    def check_task(task: Task, kwargs: Mapping[str, Any]) -> None:
        """Raises ValueError that says what the task lacks."""
        settings = settings_from(WebSettings, kwargs)
        about = [name for name in ("miniwob", "site", "url") if name in task.extra]
        if len(about) != 1:
            raise ValueError(
                f"names {' and '.join(about) or 'nothing to look at'}; give one of miniwob, site, url"
            )
        seed = task.extra.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ValueError("seed is not a whole number from 0")
        if about == ["miniwob"]:
            miniwob.check_name(task.extra["miniwob"])
        elif about == ["site"]:
            check_task = getattr(_site_class(settings, task), "check_task", None)
            if check_task is not None:
                check_task(task)
        elif not isinstance(task.extra["url"], str) or not is_allowed(
            task.extra["url"], settings.allowed_hosts, ()
        ):
            raise ValueError(
                f"url is {str(task.extra['url'])[:80]!r}, not a page of"
                f" env_config.kwargs.web.allowed_hosts={list(settings.allowed_hosts)}"
            )

    @classmethod
    async def close_shared(cls) -> None:
        """End the browsers of this event loop."""
        loop = asyncio.get_running_loop()
        for settings, browsers in list(cls._shared.items()):
            del cls._shared[settings]
            if browsers.loop is loop:
                await browsers.close()
            else:
                browsers.kill()

    async def reset(self, task: Task, seed: int) -> Observation:
        try:
            self.check_task(task, self._kwargs)
        except ValueError as error:
            raise EnvironmentRefusal(f"task {task.task_id}: {error}") from None
        await self.close()
        self._task = task
        self._seed = task.extra.get("seed", seed)
        self._goal = None
        self._replaced = 0
        self._seen = (b"", "")
        browsers = self._browsers = self._browsers_here()
        self._browser = await browsers.lease()
        async with browsers.turn():
            try:
                await self._open(task, browsers, self._browser)
            except PageLost:
                await self._replace("The page did not answer.")
            observation, _ = await self._look()
        if self._goal is None:
            raise EnvironmentFailure(f"the page of task {task.task_id} did not show its goal in time")
        return observation

    async def step(self, action: str) -> StepResult:
        assert self._tabs is not None and self._browsers is not None
        try:
            done = await off_loop(len(action), read_action, action)
        except InvalidAction as error:
            self._tabs.note(str(error))
            async with self._browsers.turn():
                observation, _ = await self._look()
            return StepResult(observation, changed=False, invalid=True)
        if done.name == "wait":
            await asyncio.sleep(done.number)  # not in a turn: it uses no core
            done = WebAction("wait", number=0)
        async with self._browsers.turn():
            return await self._carry_out(done)

    async def close(self) -> None:
        tabs, self._tabs = self._tabs, None
        browser, self._browser = self._browser, None
        if tabs is not None:
            await tabs.close()
        if self._browsers is not None:
            if self._visit is not None:
                self._browsers.server.forget(self._visit)
            if browser is not None:
                await self._browsers.give_back(browser)
        self._visit = self._site = self._browsers = None
        if self._pictures is not None:
            pictures, self._pictures = self._pictures, None
            await asyncio.to_thread(pictures.cleanup)

    async def query(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns in the page: for scripted agents and tests, never for a model."""
        assert self._tabs is not None
        return await self._tabs.evaluate(script, *arguments)

    @property
    def page_input(self) -> PageInput:
        """Return the mapping between places on this page and coordinates from 0 to 1000."""
        return self._page_input

    def _browsers_here(self) -> Browsers:
        shared = self._shared.get(self._settings)
        if shared is None or shared.loop is not asyncio.get_running_loop():
            if shared is not None:
                shared.kill()
            shared = self._shared[self._settings] = Browsers(self._settings)
        return shared

    async def _open(self, task: Task, browsers: Browsers, browser: Browser) -> None:
        settings = self._settings
        is_small = "miniwob" in task.extra
        size = (miniwob.WIDTH, miniwob.HEIGHT) if is_small else (settings.width, settings.height)
        self._page_input = PageInput(*size)
        cookie = None
        if "site" in task.extra:
            self._site = _site_class(settings, task)(task, self._seed)
            self._visit = browsers.server.admit(self._site)
            url = f"http://{task.extra['site']}.test"
            cookie = {"name": COOKIE, "value": self._visit, "url": url, "httpOnly": True}
            home = url + self._site.start
        else:
            home = miniwob.url_of(task.extra["miniwob"]) if is_small else task.extra["url"]
        self._tabs = Tabs(
            browser,
            allowed=settings.allowed_hosts,
            own_hosts=browsers.server.hosts,
            timeouts=(settings.action_timeout_s, settings.load_timeout_s),
        )
        await self._tabs.open(size=size, scale=settings.scale, cookie=cookie)
        if not is_small:
            self._goal = await self._begin()
        await self._tabs.go(home, is_home=True)
        if is_small:
            self._goal = await self._begin()

    async def _begin(self) -> str:
        task, tabs = self._task, self._tabs
        assert task is not None and tabs is not None
        if "miniwob" not in task.extra:
            return getattr(self._site, "goal", None) or task.prompt
        try:
            return str(await tabs.bounded(miniwob.begin(tabs.front, self._seed)))
        except (PageLost, EnvironmentFailure):
            raise
        except Exception as error:
            name = task.extra["miniwob"]
            raise EnvironmentFailure(
                f"the page of MiniWoB did not start: {name}: {first_line(error)}"
            ) from error

    async def _carry_out(self, action: WebAction) -> StepResult:
        tabs = self._tabs
        assert tabs is not None
        try:
            if action.name == "goto":
                await tabs.go(action.text)
            elif action.name == "back":
                await tabs.back()
            elif action.name != "answer":
                await tabs.act(lambda page: self._page_input.do(page, action))
            reward = await self._reward(action.text if action.name == "answer" else None)
        except PageLost as error:
            if self._replaced >= _MAX_REPLACED:
                tabs.note(f"{error} This is the end of the attempt.")
                return StepResult(Observation(self._text()), truncated=True)
            await self._replace(str(error))
            reward = None
        observation, is_new = await self._look()
        is_over = reward is not None or action.name == "answer"
        return StepResult(observation, reward=reward or 0.0, done=is_over, changed=is_new)

    async def _reward(self, answer: str | None) -> float | None:
        tabs, task = self._tabs, self._task
        assert tabs is not None and task is not None
        if "miniwob" in task.extra:
            try:
                return await tabs.bounded(miniwob.outcome(tabs.front))
            except (PageLost, EnvironmentFailure):
                raise
            except Exception:  # the tab shows another page
                return None if answer is None else 0.0
        if self._site is not None:
            return self._site.reward(answer)
        if answer is None or task.answer is None:
            return None
        return float(_plain(answer) == _plain(task.answer))

    async def _replace(self, reason: str) -> None:
        """Begin again with a new tab where the page is of no use any more."""
        tabs, task = self._tabs, self._task
        assert tabs is not None and task is not None
        self._replaced += 1
        try:
            await tabs.replace(reason)
            self._goal = await self._begin()
        except PageLost as error:
            tabs.note(str(error))

    async def _look(self) -> tuple[Observation, bool]:
        """Return what is to be seen, and whether it differs from what was seen before."""
        tabs = self._tabs
        assert tabs is not None
        path = self._next_picture()
        try:
            content = await tabs.picture(path)
        except PageLost as error:
            await self._replace(str(error))
            try:
                content = await tabs.picture(path)
            except PageLost:
                tabs.note("The page shows nothing.")
                content = await asyncio.to_thread(_blank, path)
        seen, self._seen = self._seen, (content, tabs.url)
        return Observation(self._text(), (str(path),)), seen != self._seen

    def _text(self) -> str:
        tabs, task = self._tabs, self._task
        assert tabs is not None and task is not None
        lines = [f"Goal: {self._goal}"]
        if "miniwob" not in task.extra:  # its pages are one each, of no interest
            lines.append(f"Page: {tabs.url[:_MAX_URL]}")
        return "\n".join([*lines, *tabs.take_notes()])

    def _next_picture(self) -> Path:
        if self._pictures is None:
            self._pictures = tempfile.TemporaryDirectory(prefix="rl-agent-web-", ignore_cleanup_errors=True)
        self._count += 1
        return Path(self._pictures.name) / f"{self._count}.png"


def _site_class(settings: WebSettings, task: Task) -> type[Site]:
    sites = dict(settings.sites)
    name = task.extra["site"]
    if not isinstance(name, str) or name not in sites:
        raise ValueError(
            f"site is {name!r}; there are {', '.join(sites) or 'none'} (env_config.kwargs.web.sites)"
        )
    return load_site(name, sites[name])


def _plain(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().casefold()


def _blank(path: Path) -> bytes:
    from PIL import Image

    Image.new("RGB", (160, 210), "white").save(path)
    return path.read_bytes()
