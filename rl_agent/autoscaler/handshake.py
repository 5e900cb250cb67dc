"""Checks a manager when it first answers: whether it can be followed, before it costs a machine."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from rl_agent.autoscaler.manager_link import HttpManager
from rl_agent.errors import ConfigError, RetryLater


async def until_accepted(
    manager: HttpManager,
    url: str,
    report: Callable[[str], None],
    leaving: asyncio.Event,
    *,
    poll_s: float,
    needs_kinds: bool,
) -> None:
    """Ask until the manager answers or `leaving` is set. Raises ConfigError if it does not fit.

    `needs_kinds`: there are no machines yet, which it would have to want.
    """
    has_reported = False
    while not leaving.is_set():
        try:
            view = await manager.view()
            await _check_admin_token(manager)
        except RetryLater as error:
            if not has_reported:
                report(f"waiting for the manager: {error}")
            has_reported = True
        else:
            if needs_kinds and not view.kinds:
                raise ConfigError(
                    f"{url} names no kinds of engines; give its manager scale.kinds (a run: pool.scale.kinds)"
                )
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_s):
                await leaving.wait()


async def _check_admin_token(manager: HttpManager) -> None:
    """Check that the token may drain machines before they are stopped. Raises ConfigError."""
    try:
        await manager.check_admin_token()
    except ConfigError as error:
        raise ConfigError(f"--admin-token-file: {error}; the manager's admin_token_file has it") from error
