"""The manager as a reconciler asks it, over HTTP: what its pool has and wants, and drains by name."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_agent.autoscaler.observation import PoolEngine, PoolView, RunOver
from rl_agent.config.sections.pool_scale import EngineKindConfig
from rl_agent.errors import ConfigError, RetryLater
from rl_agent.pool.client import Manager
from rl_agent.pool.demand.records import EngineKind, Wanted
from rl_agent.pool.manager_file import ManagerFile

ReadToken = Callable[[], str | None]


class HttpManager:
    """One manager. Tokens are read anew for each call, for they may be exchanged meanwhile."""

    def __init__(
        self,
        url: str,
        read_token: ReadToken,
        read_admin_token: ReadToken,
        tls_ca: Path | None = None,
        file: ManagerFile | None = None,
        on_move: Callable[[str], None] = lambda url: None,
    ) -> None:
        """`on_move` is called with the new address once the manager has moved, which `file` states."""
        self._url = url
        self._read_token = read_token
        self._read_admin_token = read_admin_token
        self._tls_ca = tls_ca
        self._file = file
        self._on_move = on_move

    async def view(self) -> PoolView:
        """Raises RetryLater or ConfigError."""
        return view_of(await self._ask(self._read_token(), "/status"), self._url)

    async def report(self, fleet: str, failed: dict[str, dict[str, float]]) -> None:
        """Report the kinds that the provider does not give. Raises RetryLater or ConfigError."""
        await self._ask(self._read_token(), f"/fleets/{quote(fleet, safe='')}", {"failed": failed})

    async def check_admin_token(self) -> None:
        """Raise ConfigError if the token that would drain may not; RetryLater without answer."""
        answer = await self._ask(self._read_admin_token() or self._read_token(), "/wanted")
        if not answer.get("may_drain"):
            raise ConfigError(f"{self._url} lets this token drain no engine")

    async def drain(self, name: str, deadline_s: float, why: str) -> None:
        """Raises RetryLater or ConfigError."""
        token = self._read_admin_token() or self._read_token()
        body = {"deadline_s": deadline_s, "reason": f"pool scale: {why}"[:200]}
        await self._ask(token, f"/engines/{quote(name, safe='')}/drain", body)

    async def _ask(self, token: str | None, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the manager where it is now. Raises RetryLater or ConfigError."""
        began = self._url
        manager = Manager(began, token, self._tls_ca, self._file)
        try:
            return await asyncio.to_thread(manager.ask, path, body)
        except RetryLater as error:
            if self._file is not None and self._file.is_gone:
                raise RunOver(f"its run is over: {self._file.where} is gone, and {error}") from error
            raise
        finally:
            if manager.url not in (began, self._url):  # else it was a call at the old address that ended late
                self._url = manager.url
                self._on_move(manager.url)


def view_of(status: dict[str, Any], url: str) -> PoolView:
    """Read a manager's status. Raises RetryLater for one that cannot be read."""
    try:
        engines = {
            row["name"]: PoolEngine(
                row["name"], int(row["running"]), row["state"] == "draining", row.get("kind", "")
            )
            for row in status["engines"]
        }
        answer = status["wanted"]
        keys = EngineKindConfig.model_fields  # a newer manager may name more
        kinds = tuple(EngineKind(**{key: kind[key] for key in keys}) for kind in answer["kinds"])
        wanted = Wanted(answer["counts"], answer["reason"])
    except (KeyError, TypeError) as error:
        raise RetryLater(f"{url}/status cannot be read: {error!r}"[:300]) from error
    return PoolView(engines, wanted if kinds else None, kinds)
