"""Checks a manager when it first answers: whether it can be followed, before it costs a machine."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from rl_agent.autoscaler.reconcile_loop import PoolView
from rl_agent.errors import ConfigError, RetryLater


class NewManager(Protocol):
    """The manager, as it is asked before it is followed. Raises HarnessError without a good answer."""

    async def view(self) -> PoolView: ...

    async def check_admin_token(self) -> None: ...


class ManagerHandshake:
    """The check of one manager; `needs_kinds`: there are no machines yet, which it would have to want."""

    def __init__(
        self, manager: NewManager, url: str, report: Callable[[str], None], *, needs_kinds: bool
    ) -> None:
        self._manager = manager
        self._url = url
        self._report = report
        self._needs_kinds = needs_kinds
        self._is_accepted = False
        self._has_reported = False

    async def attempt(self) -> None:
        """Ask the manager; without an answer it stays unaccepted. Raises ConfigError if it does not fit."""
        try:
            view = await self._manager.view()
            await self._check_admin_token()
        except RetryLater as error:
            if not self._has_reported:
                self._has_reported = True
                self._report(f"waiting for the manager: {error}")
            return
        if not view.kinds and self._needs_kinds:
            raise ConfigError(
                f"{self._url} names no kinds of engines; give its manager scale.kinds"
                " (a run: pool.scale.kinds)"
            )
        self._is_accepted = True

    async def until_accepted(self, poll_s: float, leaving: asyncio.Event) -> None:
        """Ask again and again, until the manager is accepted or `leaving` is set. Raises ConfigError."""
        while not (self._is_accepted or leaving.is_set()):
            with suppress(TimeoutError):
                async with asyncio.timeout(poll_s):
                    await leaving.wait()
            await self.attempt()

    async def _check_admin_token(self) -> None:
        """Check that the token may drain machines before they are stopped. Raises ConfigError."""
        try:
            await self._manager.check_admin_token()
        except ConfigError as error:
            raise ConfigError(
                f"--admin-token-file: {error}; the manager's admin_token_file has it"
            ) from error
