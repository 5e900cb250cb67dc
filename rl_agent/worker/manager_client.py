"""A worker's HTTP client for its manager.

It reads the token again when that is refused, and the manager's address when there is no answer.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from time import monotonic
from typing import Any

import aiohttp
from yarl import URL

from rl_agent.cluster.shared_fs.address import LOOPBACK, address_towards
from rl_agent.errors import ConfigError, HarnessError, RetryLater
from rl_agent.http.tokens import is_loopback
from rl_agent.pool.manager_file import ManagerFile, is_manager
from rl_agent.pool.schemas import ENGINE_SECRET, NEWS_S, NO_DIGEST

log = logging.getLogger(__name__)
CALL_TIMEOUT_S = 3.0
LINES_S = 30.0


def own_address(manager: URL) -> str:
    """Return this host's address for all who reach the manager, as this one does. Raises OSError."""
    host = manager.host or ""
    return LOOPBACK if is_loopback(host) else address_towards(host, manager.port or 80)


class ManagerCalls:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        manager: str,
        read_token: Callable[[], str | None],
        file: ManagerFile | None = None,
    ) -> None:
        self.url = URL(manager)
        self._session = session
        self._read_token = read_token
        self._file = file
        self._token = read_token()
        self._secret = secrets.token_hex(16)
        """A manager, this one or the next, knows by this that a call comes from who registered the engine."""
        self._is_refused = False
        self._untrusted = ""
        self._silent_since: float | None = None
        """The time since which the manager has not answered."""
        self._next_line = 0.0

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    @property
    def engine_headers(self) -> dict[str, str]:
        """Return the headers of a call about this worker's own engine."""
        return self.headers | {ENGINE_SECRET: self._secret}

    async def call(self, method: str, path: str, body: Any = None, *, wait_s: float = 0.0) -> tuple[int, Any]:
        """Return the status and the JSON; 0 and the reason if the manager does not answer.

        `wait_s`: seconds that the manager may take before it answers.
        """
        timeout_s = CALL_TIMEOUT_S + wait_s
        status, payload = await self._call(method, path, body, timeout_s)
        if status == 401 and self._has_new_token():
            status, payload = await self._call(method, path, body, timeout_s)
        if status in (0, 401) and self._file is not None and await self._has_moved(self._file):
            status, payload = await self._call(method, path, body, timeout_s)
        if status == 401 and not self._is_refused:
            log.warning("the manager refuses the token, so its file is reread until it is accepted")
        self._is_refused = status == 401
        return status, payload

    async def hear_of_weights(self, digest: str) -> None:
        """Return once the pool may want weights of another digest than this one; empty: none."""
        status, _ = await self.call("GET", f"weights/newer-than/{digest or NO_DIGEST}", wait_s=NEWS_S)
        if status != 200:
            await asyncio.sleep(NEWS_S)

    async def _has_moved(self, file: ManagerFile) -> bool:
        """Move to the manager at the address that the file states, if one answers there."""
        address = await asyncio.to_thread(file.read_other, str(self.url))
        if address is None:
            return False
        status, payload = await self._ask(URL(address), "GET", "status", None, CALL_TIMEOUT_S)
        if status != 200 or not is_manager(payload):
            return False
        self.url = URL(address)
        log.info("the manager has moved to %s", address)
        return True

    def check_patience(self, patience_s: float) -> None:
        """Raise RetryLater if the manager has not answered for so long, ConfigError if it is not trusted.

        Raises ConfigError if it will never be heard, its certificate being one that is not trusted.
        """
        manager = self.url.origin()
        if self._untrusted:
            raise ConfigError(
                f"the manager at {manager} has an untrusted certificate"
                f" ({self._untrusted}): --tls-ca names one that is"
            )
        silent_s = monotonic() - (self._silent_since or monotonic())
        if silent_s >= patience_s:
            raise RetryLater(f"the manager at {manager} has not answered for {silent_s:.0f} s")

    async def _call(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, Any]:
        status, payload = await self._ask(self.url, method, path, body, timeout_s)
        if status == 0:
            self._note_silence(path, str(payload) or type(payload).__name__)
            if isinstance(payload, aiohttp.ClientConnectorCertificateError):
                self._untrusted = str(payload.certificate_error)
            return 0, str(payload)
        self._silent_since = None
        return status, payload

    async def _ask(self, url: URL, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, Any]:
        """Return the status and the JSON; 0 and the error if the manager at `url` does not answer."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method,
                url / path,
                json=body,
                headers=self.engine_headers,
                timeout=timeout,
                allow_redirects=False,  # or the keys in headers and body would go to another address
            ) as answer:
                return answer.status, await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return 0, error

    def _note_silence(self, path: str, words: str) -> None:
        """Log that the manager does not answer, at once and then from time to time."""
        now = monotonic()
        if self._silent_since is None:
            self._silent_since = self._next_line = now
        if now >= self._next_line:
            self._next_line = now + LINES_S
            log.info("waiting for the manager, which does not answer /%s: %s", path, words)

    def _has_new_token(self) -> bool:
        before = self._token
        try:
            self._token = self._read_token()
        except HarnessError:
            return False  # half-way through a rotation
        return self._token != before


def words_of(payload: Any) -> str:
    try:
        return str(payload["error"]["message"])
    except (KeyError, TypeError):
        return str(payload)[:200]
