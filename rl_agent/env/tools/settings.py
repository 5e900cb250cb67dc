"""The settings of an environment of the kind `tools`: `env_config.kwargs.tools`."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_agent.env.tools.functions import load
from rl_agent.env.tools.mcp_server import ServerPlace

VERIFIERS = ("math", "reasoning_gym", "none")
SESSIONS = ("run", "episode")


@dataclass(frozen=True, slots=True)
class ToolsSettings:
    """The settings of an environment, checked; the configuration's page describes them."""

    functions: tuple[str, ...]
    mcp: dict[str, Any] | None
    place: ServerPlace | None
    """The way to the server that `mcp` describes."""
    is_shared: bool
    verifier: str
    tool_timeout_s: float
    max_answer_chars: int
    verify_timeout_s: float
    workers: int


def settings_of(
    *,
    functions: Sequence[str] = (),
    mcp: dict[str, Any] | None = None,
    session: str = "run",
    verifier: str = "math",
    tool_timeout_s: float = 30.0,
    max_answer_chars: int = 4000,
    verify_timeout_s: float = 5.0,
    workers: int = 1,
) -> ToolsSettings:
    """Return the settings with their defaults. Raises ValueError naming the key that is wrong."""
    for name, value, least, most in (
        ("tool_timeout_s", tool_timeout_s, 0.05, 86_400),
        ("max_answer_chars", max_answer_chars, 1, 10_000_000),
        ("verify_timeout_s", verify_timeout_s, 0.05, 86_400),
        ("workers", workers, 1, 1024),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; use a number from {least} to {most}")
    for name, word, words in (("session", session, SESSIONS), ("verifier", verifier, VERIFIERS)):
        if word not in words:
            raise ValueError(f"{name} is {word!r}; use {', '.join(words)}")
    if isinstance(functions, str) or not isinstance(functions, Sequence):
        raise ValueError(f"functions is {functions!r}; write a list, [package.module:function]")
    if not functions and not mcp:
        raise ValueError("neither functions nor mcp is set")
    return ToolsSettings(
        functions=tuple(functions),
        mcp=mcp,
        place=ServerPlace.of(mcp) if mcp else None,
        is_shared=session == "run",
        verifier=verifier,
        tool_timeout_s=tool_timeout_s,
        max_answer_chars=int(max_answer_chars),
        verify_timeout_s=verify_timeout_s,
        workers=int(workers),
    )


def check_here(settings: ToolsSettings) -> None:
    """Raises ValueError for functions that cannot be tools, LookupError for a program that is not here."""
    load(settings.functions)
    place = settings.place
    if place is None or not place.command:
        return
    if place.cwd is not None and not Path(place.cwd).is_dir():
        raise LookupError(f"mcp.cwd={place.cwd}: there is no such folder")
    program = place.command[0]
    here = Path(place.cwd or ".") / program if "/" in program else program
    if shutil.which(here, path=place.env.get("PATH")) is None:
        raise LookupError(f"mcp.command: there is no program {program}")
