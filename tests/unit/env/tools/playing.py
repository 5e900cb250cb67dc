"""Python functions as tools, and an agent that calls them."""

import asyncio
import time

from rl_agent.chat.tool_calls import action_of
from rl_agent.chat.tool_formats import ToolCall
from rl_agent.env.tools.environment import ToolsEnvironment
from rl_agent.types import Task

HERE = f"{__name__}:"


def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


def sleep(seconds: float) -> str:
    """Sleep for some time."""
    time.sleep(seconds)
    return "slept"


def explode() -> str:
    """Fail."""
    raise OSError("no\nfuel")


def interrupt() -> str:
    """Fail as if somebody had pressed Ctrl+C."""
    raise KeyboardInterrupt


def shout(times: int) -> str:
    """Say much."""
    return "a" * times


async def later(word: str) -> dict[str, str]:
    """Answer later."""
    await asyncio.sleep(0)
    return {"word": word}


FUNCTIONS = tuple(HERE + name for name in ("add", "sleep", "explode", "interrupt", "shout", "later"))


def task(**extra):
    return Task("t", "What is 17 + 25?", "tools", "easy", "42", extra)


def call(name, **arguments):
    return action_of(ToolCall(name, arguments))


async def played(*actions, **kwargs):
    """Return what each action was answered with; the environment is closed."""
    environment = ToolsEnvironment(**{"functions": FUNCTIONS, "verifier": "none"} | kwargs)
    try:
        await environment.reset(kwargs.pop("task", task()), 0)
        return [await environment.step(action) for action in actions]
    finally:
        await environment.close()
        await ToolsEnvironment.close_shared()


def undescribed(a: int) -> int:
    return a
