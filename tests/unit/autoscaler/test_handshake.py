"""A manager that comes late is checked like one that was there at the start."""

import asyncio

import pytest

from rl_agent.autoscaler.handshake import until_accepted
from rl_agent.autoscaler.observation import PoolView
from rl_agent.errors import ConfigError, RetryLater
from tests.support.virtual_time import run_virtually
from tests.unit.autoscaler.play import SPOT


class LateManager:
    """Answers from its third question on."""

    def __init__(self, *, kinds=(SPOT,), takes_token=True):
        self.kinds, self.takes_token, self.questions = kinds, takes_token, 0

    async def view(self):
        self.questions += 1
        if self.questions < 3:
            raise RetryLater("no answer")
        return PoolView({}, None, self.kinds)

    async def check_admin_token(self):
        if not self.takes_token:
            raise ConfigError("http://m lets this token drain no engine")


def met(manager, *, needs_kinds=True):
    """The lines that were reported until the manager was met."""
    lines, more = [], {"poll_s": 5.0, "needs_kinds": needs_kinds}
    run_virtually(until_accepted(manager, "http://m", lines.append, asyncio.Event(), **more))
    return lines


def test_a_late_manager_is_waited_for_with_one_line():
    manager = LateManager()
    assert met(manager) == ["waiting for the manager: no answer"]
    assert manager.questions == 3


def test_a_token_that_drains_nothing_is_refused_once_the_manager_answers():
    with pytest.raises(ConfigError, match=r"--admin-token-file: .*lets this token drain no engine"):
        met(LateManager(takes_token=False))


def test_a_late_manager_without_kinds_is_refused_where_there_is_no_machine():
    with pytest.raises(ConfigError, match="names no kinds of engines"):
        met(LateManager(kinds=()))
    met(LateManager(kinds=()), needs_kinds=False)


def test_leaving_ends_the_wait():
    async def run():
        leaving = asyncio.Event()
        leaving.set()
        await until_accepted(LateManager(), "http://m", str, leaving, poll_s=5.0, needs_kinds=True)

    run_virtually(run())
