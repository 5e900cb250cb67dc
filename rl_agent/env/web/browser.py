"""One Chromium of this process: started when it is needed, replaced when it is old, ended with its group.

    lease ─► the newest browser has had too many episodes, is too old or too large? ─► a new one starts
      │                                                        the old one ends with its last episode
      └► an isolated context ─► episode ─► give_back

A browser that died fails the episodes that it had; the next lease starts another.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from rl_agent.env.guard import descendants, own_bytes
from rl_agent.env.guarded import Guarded
from rl_agent.env.web.hosts import ways
from rl_agent.env.web.server import SiteServer
from rl_agent.env.web.settings import WebSettings, find_chromium
from rl_agent.env.web.socks_proxy import SocksProxy
from rl_agent.errors import EnvironmentFailure, EnvironmentUnavailable, first_line

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 10.0
_MEASURE_EVERY_S = 5.0

_OFF = (
    "AcceptCHFrame,AutoDeElevate,AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,DialMediaRouteProvider"
    ",GlobalMediaControls,HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,ImprovedCookieControls,LensOverlay,MediaRouter"
    ",NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,PreconnectToSearch,Translate"
)
_FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-startup-window", "--no-first-run",
    "--no-default-browser-check", "--no-service-autorun", "--password-store=basic", "--use-mock-keychain",
    "--force-color-profile=srgb", "--hide-scrollbars", "--mute-audio", "--font-render-hinting=none",
    "--metrics-recording-only", "--disable-background-networking", "--disable-background-timer-throttling",
    "--disable-back-forward-cache", "--disable-backgrounding-occluded-windows", "--disable-breakpad",

    "--disable-component-update", "--disable-component-extensions-with-background-pages",
    "--disable-default-apps", "--disable-dev-shm-usage", "--disable-domain-reliability",
    "--disable-extensions", "--disable-field-trial-config", "--disable-gpu", "--disable-hang-monitor",
    "--disable-prompt-on-repost", "--disable-renderer-backgrounding",
    "--disable-search-engine-choice-screen", "--disable-sync", "--disable-smooth-scrolling", "--no-pings",
    f"--disable-features={_OFF}", "--enable-features=CDPScreenshotNewSurface",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)  # fmt: skip
"""Popups stay blocked unless the agent's own click opens them."""


class Browser:
    """One Chromium with the driver of its library; made by `Browsers`."""

    def __init__(self, settings: WebSettings, ways: tuple[str, ...]) -> None:
        self._settings = settings
        self._ways = ways
        self._playwright: Any = None
        self._chromium: Any = None
        self._guarded = Guarded("rl-agent-browser-")
        self._began = time.monotonic()
        self._measured = self._began
        self.episodes = 0
        self.leased = 0
        self.has_died = False
        self._is_retired = False

    @property
    def pid(self) -> int:
        """Process id of the browser's guard; 0 while there is none."""
        return self._guarded.pid

    async def start(self) -> None:
        """Start Chromium. Raises EnvironmentUnavailable if this machine has none."""
        from playwright.async_api import async_playwright

        settings = self._settings
        try:
            path = find_chromium(settings)
        except LookupError as error:
            raise EnvironmentUnavailable(f"web pages cannot be shown here: {error}") from None
        program, *arguments = self._guarded.words(
            *(path, *_FLAGS, f"--user-data-dir={self._guarded.folder / 'profile'}"),
            *(() if settings.sandbox else ("--no-sandbox",)),
            *self._ways,
            max_mib=settings.max_page_mib,
            among="--type=renderer",
        )
        self._playwright = await async_playwright().start()
        self._chromium = await self._playwright.chromium.launch(
            executable_path=program,
            ignore_default_args=True,
            args=arguments,
            timeout=_START_TIMEOUT_S * 1000,
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )
        self._chromium.on("disconnected", lambda _: self._note_death())

    def _note_death(self) -> None:
        self.has_died = True

    def is_worn(self) -> bool:
        """Tell whether the next episode should have a new browser."""
        settings = self._settings
        now = time.monotonic()
        if (
            self.has_died
            or self._is_retired
            or self.episodes >= settings.max_episodes
            or now - self._began > settings.max_age_s
        ):
            return True
        if now - self._measured < _MEASURE_EVERY_S:
            return False
        self._measured = now
        return self.resident_bytes() > settings.max_browser_mib << 20

    def resident_bytes(self) -> int:
        """Return the memory that the processes of this browser have to themselves."""
        return own_bytes(descendants(pid)) if (pid := self.pid) else 0

    async def new_context(self, width: int, height: int, scale: float) -> Any:
        """Return a context that shares nothing with the others. Raises EnvironmentFailure."""
        try:
            return await self._chromium.new_context(
                viewport={"width": width, "height": height},
                device_scale_factor=scale,
                accept_downloads=False,
                service_workers="block",
                locale="en-US",
                timezone_id="UTC",
                reduced_motion="reduce",
            )
        except Exception as error:  # the library's own types, and those of its pipe
            raise EnvironmentFailure(f"the browser opens no page: {first_line(error)}") from error

    async def close(self) -> None:
        """End the browser, its driver and all that they started; does not raise."""
        is_willing = not (self.has_died or self._is_retired)
        self.has_died = True
        if is_willing and self._chromium:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._chromium.close()
        await self._guarded.end()
        if self._playwright:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._playwright.stop()

    def kill(self) -> None:
        """Have the guard end the browser at once."""
        self._guarded.tell()

    def retire(self) -> None:
        """Give no further episode to a browser that did not answer one."""
        self._is_retired = True


class Browsers:
    """Leases contexts of the newest browser, and replaces it in time. Belongs to one event loop."""

    def __init__(self, settings: WebSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = SiteServer(settings.sites)
        self._proxy = SocksProxy(settings.allowed_hosts) if settings.allowed_hosts else None
        self._settings = settings
        self._turns = asyncio.Semaphore(settings.at_once)
        self._starting = asyncio.Lock()
        self._newest: Browser | None = None
        self._all: set[Browser] = set()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the right to use the machine's cores: only so many pages work at the same moment."""
        async with self._turns:
            yield

    async def lease(self) -> Browser:
        """Return a live browser for one episode; to be given back. Raises EnvironmentFailure."""
        async with self._starting:
            if self._newest is None or self._newest.is_worn():
                replaced, self._newest = self._newest, await self._start()
                if replaced is not None and not replaced.leased:
                    await self._end(replaced)
            browser = self._newest
            browser.leased += 1
            browser.episodes += 1
        return browser

    async def give_back(self, browser: Browser) -> None:
        """End a browser that was replaced, died or is worn, after its last episode."""
        browser.leased -= 1
        if not browser.leased and (browser is not self._newest or browser.is_worn()):
            if browser is self._newest:
                self._newest = None
            await self._end(browser)

    async def close(self) -> None:
        """End all browsers and the server of the sites."""
        for browser in tuple(self._all):
            await self._end(browser)
        await self.server.close()
        if self._proxy is not None:
            self._proxy.close()

    def kill(self) -> None:
        """End all browsers at once, without an event loop."""
        for browser in self._all:
            browser.kill()

    async def _start(self) -> Browser:
        port = await self.server.start()
        sites = dict.fromkeys(self.server.hosts, port)
        proxy = None if self._proxy is None else await self._proxy.start()
        browser = Browser(self._settings, ways(sites, proxy))
        self._all.add(browser)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await browser.start()
        except BaseException as error:
            await asyncio.shield(self._end(browser))
            if isinstance(error, EnvironmentUnavailable) or not isinstance(error, Exception):
                raise
            raise EnvironmentFailure(f"the browser does not start: {first_line(error)}") from error
        return browser

    async def _end(self, browser: Browser) -> None:
        self._all.discard(browser)
        await browser.close()
