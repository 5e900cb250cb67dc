"""The browser as one episode sees it: the tab in front, and what happened beside the agent's own actions.

A page is written by others. It may open tabs and dialogs without end, close itself, go elsewhere, crash
or compute for ever; all of that ends in a note of one line for the agent and a tab that can be used
again. Nothing waits longer than its timeout, and a browser that has died is an EnvironmentFailure.
"""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rl_agent.env.web.browser import Browser
from rl_agent.env.web.hosts import is_allowed
from rl_agent.errors import EnvironmentFailure, first_line

MAX_TABS = 5
MAX_DIALOGS = 20
"""A page that opens more dialogs than this in answer to one action counts as one that never stops."""
MAX_NOTE = 200
_MAX_NOTES = 5
T = TypeVar("T")
_MAX_PICTURES = 4
"""The number of tries for a picture while pages follow each other."""
_CLOSE_TIMEOUT_S = 5.0
_NO_FILES = "The page asked for a file; there are no files here."
_PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"


class PageLost(Exception):
    """The page does not answer, or is gone; it has to be replaced."""


class Tabs:
    """The tabs of one context. `front` is the one that the agent sees."""

    def __init__(
        self,
        browser: Browser,
        *,
        allowed: tuple[str, ...],
        own_hosts: tuple[str, ...],
        timeouts: tuple[float, float],
    ) -> None:
        self._browser = browser
        self._allowed = allowed
        self._own_hosts = own_hosts
        self._action_timeout_s, self._load_timeout_s = timeouts
        self._context: Any = None
        self._opened: list[Any] = []
        self._surplus: list[Any] = []
        self._notes: list[str] = []
        self._dialogs = 0
        self._loading: set[Any] = set()
        self._moved = asyncio.Event()
        self._crashed: set[Any] = set()
        self._devtools: tuple[Any, Any] | None = None
        self._home = "about:blank"

    async def open(self, *, size: tuple[int, int], scale: float, cookie: dict[str, Any] | None) -> None:
        """Open an isolated context with one empty tab."""
        self._context = await self._browser.new_context(*size, scale)
        self._context.set_default_timeout(self._load_timeout_s * 1000)
        self._context.on("page", self._watch)
        with self._failing():
            if cookie is not None:
                await self._context.add_cookies([cookie])
            await self._context.new_page()

    async def close(self) -> None:
        """Close the context and all that is in it; does not raise."""
        context, self._context = self._context, None
        if context is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await context.close()

    @property
    def front(self) -> Any:
        """The tab that the agent sees. Raises PageLost where there is none."""
        if self._browser.has_died:
            raise EnvironmentFailure("the browser ended in the middle of the episode")
        if not self._opened:
            raise PageLost("All tabs were closed.")
        if self._opened[-1] in self._crashed:
            raise PageLost("The page crashed.")
        return self._opened[-1]

    @property
    def url(self) -> str:
        return self._opened[-1].url if self._opened else "about:blank"

    def note(self, words: str) -> None:
        """Keep a line for the agent; of many, the first few."""
        line = " ".join(words.split())
        line = line if len(line) <= MAX_NOTE else line[: MAX_NOTE - 1] + "…"
        if len(self._notes) < _MAX_NOTES and line not in self._notes:
            self._notes.append(line)

    def take_notes(self) -> list[str]:
        """Return the lines since the last call, and begin anew."""
        notes, self._notes = self._notes, []
        self._dialogs = 0
        return notes

    async def go(self, url: str, *, is_home: bool = False) -> None:
        """Open an address in the front tab."""
        if is_home:
            self._home = url
        if not is_allowed(url, self._allowed, self._own_hosts):
            self.note(self._refusal(url))
            return
        error = await self._attempt(lambda page: page.goto(url, wait_until="load"), self._load_timeout_s)
        if error is not None:
            await self._leave_error_page(error, url)

    async def back(self) -> None:
        """Go back: to the page before, or from a new tab to the one that opened it."""
        if len(self._opened) > 1 and await self.evaluate("() => history.length") == 1:
            await _closed(self._opened[-1])
            return
        before = self.url
        await self._attempt(lambda page: page.go_back(wait_until="load"), self._load_timeout_s)
        if self.url == "about:blank":
            await self._attempt(lambda page: page.go_forward(wait_until="load"), self._load_timeout_s)
        if self.url == before:
            self.note("There is no page to go back to.")

    async def act(self, do: Callable[[Any], Awaitable[Any]]) -> None:
        """Use mouse and keyboard of the front tab, and wait until the page has answered.

        Raises PageLost where it does not.
        """
        try:
            await self.bounded(do(self.front))
        except (PageLost, EnvironmentFailure):
            raise
        except Exception as error:  # another tab became active
            self._raise_if_gone(error)
        await self.settle()

    async def settle(self) -> None:
        """Wait until no page is on its way and what there is has been painted."""
        surplus, self._surplus = self._surplus, []
        await asyncio.gather(*(_closed(page) for page in surplus))
        try:
            async with asyncio.timeout(self._load_timeout_s):
                while True:
                    await self._painted()
                    if not self._loading:
                        break
                    self._moved.clear()
                    await self._moved.wait()
                    await self.front.wait_for_load_state("load")
        except TimeoutError:
            self._loading.clear()
            self.note("The page is still loading.")
        except Exception as error:
            self._raise_if_gone(error)
        if self.url.startswith("chrome-error:"):
            await self._leave_error_page(None, "")

    async def evaluate(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns in the front tab. Raises PageLost where the page does not answer."""
        return await self.bounded(self.front.evaluate(script, *arguments))

    async def picture(self, path: Path) -> bytes:
        """Write what the front tab shows as PNG, and return it.

        Raises PageLost where it shows nothing, EnvironmentFailure where there is no place for the file.
        """
        for _ in range(_MAX_PICTURES):
            try:
                content = base64.b64decode(await self._captured())
            except (PageLost, EnvironmentFailure):
                raise
            except Exception as error:  # the tab is on its way from one page to another
                self._raise_if_gone(error)
                self._devtools = None
                await self.settle()
                continue
            try:
                await asyncio.to_thread(path.write_bytes, content)
            except OSError as error:  # of the disk, not of the page
                raise EnvironmentFailure(f"its screenshot {path} cannot be kept: {error.strerror}") from error
            return content
        raise PageLost("The page could not be pictured.")

    async def _captured(self) -> str:
        page = self.front
        if self._devtools is None or self._devtools[0] is not page:
            await self._attach(page)
        assert self._devtools is not None
        shown = await self.bounded(
            self._devtools[1].send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        )
        encoded: str = shown["data"]
        return encoded

    async def _attach(self, page: Any) -> None:
        """Open a connection to a tab that tells of file choosers before the next picture of it.

        What the library tells of them comes after round trips of its own, often too late for the answer.
        """
        session = await self.bounded(self._context.new_cdp_session(page))
        session.on("Page.fileChooserOpened", lambda _: self.note(_NO_FILES))
        interception = session.send("Page.setInterceptFileChooserDialog", {"enabled": True})
        await self.bounded(asyncio.gather(session.send("Page.enable"), interception))
        self._devtools = (page, session)

    async def replace(self, reason: str) -> None:
        """Close what is stuck and open the first page again."""
        self.note(f"{reason} The first page was opened again.")
        stuck, self._opened = self._opened, []
        self._loading.clear()
        self._devtools = None
        with self._failing():
            await asyncio.gather(*(_closed(page) for page in stuck))
            async with asyncio.timeout(self._load_timeout_s):
                await self._context.new_page()
        await self.go(self._home)

    def _watch(self, page: Any) -> None:
        """Follow a new tab, which is then in front."""
        if len(self._opened) >= MAX_TABS:
            self.note("The page opened too many tabs; the newest was closed.")
            self._surplus.append(page)
            return
        if self._opened:
            self.note("A new tab was opened and is shown; back returns from it.")
        self._opened.append(page)
        page.on("close", self._forget)
        page.on("crash", self._note_crash)
        page.on("dialog", self._answer_dialog)
        page.on("download", self._refuse_download)
        page.on("filechooser", lambda _: None)  # with a listener no dialog opens
        page.on("request", self._note_request)
        page.on("requestfailed", self._note_failure)
        page.on("framenavigated", self._note_arrival)

    def _forget(self, page: Any) -> None:
        if page in self._opened:
            self._opened.remove(page)
            self.note("A tab was closed.")
        self._loading.clear()
        self._moved.set()

    def _note_crash(self, page: Any) -> None:
        self._crashed.add(page)
        self._loading.clear()
        self._moved.set()

    async def _answer_dialog(self, dialog: Any) -> None:
        self._dialogs += 1
        if self._dialogs > MAX_DIALOGS:
            return  # the page waits for ever, and is replaced as one that is stuck
        if dialog.type != "beforeunload":
            self.note(f"The page showed the {dialog.type} {dialog.message[:MAX_NOTE]!r}, which was accepted.")
        with contextlib.suppress(Exception):  # its page is gone
            await (dialog.accept(dialog.default_value) if dialog.type == "prompt" else dialog.accept())

    async def _refuse_download(self, download: Any) -> None:
        self.note(f"The download of {download.suggested_filename[:80]!r} was refused.")
        self._loading.clear()
        self._moved.set()
        with contextlib.suppress(Exception):
            await download.cancel()

    def _note_request(self, request: Any) -> None:
        if self._is_of_front(request):
            self._loading.add(request.frame)

    def _note_failure(self, request: Any) -> None:
        if not self._is_of_front(request):
            return
        if "ERR_ABORTED" in (request.failure or ""):  # else the browser's own error page arrives next
            self._loading.discard(request.frame)
            self._moved.set()
        if not is_allowed(request.url, self._allowed, self._own_hosts):
            self.note(self._refusal(request.url))

    def _note_arrival(self, frame: Any) -> None:
        self._loading.discard(frame)
        self._moved.set()

    def _is_of_front(self, request: Any) -> bool:
        try:
            page = self._opened[-1] if self._opened else None
            return bool(page and request.is_navigation_request() and request.frame == page.main_frame)
        except Exception:  # the frame is not there yet, or no more
            return False

    def _refusal(self, url: str) -> str:
        parts = urlsplit(url) if len(url) < 2000 else urlsplit("")
        where = parts.netloc or parts.scheme or url[:40]
        return f"{where[:80]} was not opened: this task is not about that site."

    async def _leave_error_page(self, error: BaseException | None, url: str) -> None:
        """Go back from the browser's own error page, which is not of the site."""
        if error is not None:
            if isinstance(error, TimeoutError) or "Timeout" in str(error):
                self.note("The page is still loading.")
                return
            reason = str(error).partition("net::")[2].split()
            if "ERR_ABORTED" not in reason[:1]:
                self.note(f"{url[:80]} did not open{f': {reason[0]}' if reason else ''}.")
        if not self.url.startswith("chrome-error:"):
            return
        if error is None and not self._notes:
            self.note("The page did not open.")
        await self._attempt(lambda page: page.go_back(wait_until="load"), self._load_timeout_s)
        if self.url.startswith(("chrome-error:", "about:blank")) and self._home != url:
            await self._attempt(lambda page: page.goto(self._home, wait_until="load"), self._load_timeout_s)

    async def _attempt(self, do: Callable[[Any], Awaitable[Any]], timeout_s: float) -> BaseException | None:
        """Return the error of a navigation that does not succeed."""
        try:
            async with asyncio.timeout(timeout_s):
                await do(self.front)
            await self._painted()
        except TimeoutError as error:
            return error
        except (PageLost, EnvironmentFailure):
            raise
        except Exception as error:
            self._raise_if_gone(error)
            return error
        finally:
            self._loading.clear()
        return None

    async def _painted(self) -> None:
        try:
            await self.bounded(self.front.evaluate(_PAINTED))
        except (PageLost, EnvironmentFailure):
            raise
        except Exception as error:  # the page goes on to another while we ask it
            self._raise_if_gone(error)

    async def bounded(self, job: Awaitable[T]) -> T:
        """Wait for the page, but not for ever. Raises PageLost."""
        try:
            async with asyncio.timeout(self._action_timeout_s):
                return await job
        except TimeoutError:
            raise PageLost("The page did not answer any more.") from None
        except (PageLost, EnvironmentFailure):
            raise
        except Exception as error:
            self._raise_if_gone(error)
            raise

    def _raise_if_gone(self, error: BaseException) -> None:
        """Raise what an error of the library means: the browser, the page or neither is gone."""
        if self._browser.has_died:
            raise EnvironmentFailure("the browser ended in the middle of the episode") from error
        if "crash" in str(error).lower():
            raise PageLost("The page crashed.") from error
        _ = self.front  # raises where it is gone

    @contextlib.contextmanager
    def _failing(self) -> Any:
        try:
            yield
        except EnvironmentFailure:
            raise
        except Exception as error:
            self._browser.retire()
            raise EnvironmentFailure(f"the browser does not answer: {first_line(error)}") from error


async def _closed(page: Any) -> None:
    """Close a tab whose page may not agree."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await page.close()
