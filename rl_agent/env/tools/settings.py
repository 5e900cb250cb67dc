"""The settings of an environment of the kind `tools`: `env_config.kwargs.tools`."""

import shutil
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_agent.env.tools.functions import load
from rl_agent.env.tools.mcp_server import ServerPlace


class ToolsSettings(BaseModel):
    """The settings of an environment; the configuration's page describes them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    functions: tuple[str, ...] = ()
    mcp: ServerPlace | None = None
    session: Literal["run", "episode"] = "run"
    verifier: Literal["math", "reasoning_gym", "none"] = "math"
    tool_timeout_s: Annotated[float, Field(ge=0.05, le=86_400)] = 30.0
    max_answer_chars: Annotated[int, Field(ge=1)] = 4000
    verify_timeout_s: Annotated[float, Field(ge=0.05, le=86_400)] = 5.0
    workers: Annotated[int, Field(ge=1, le=1024)] = 1

    @model_validator(mode="after")
    def _has_tools(self) -> Self:
        if not self.functions and not self.mcp:
            raise ValueError("neither functions nor mcp is set")
        return self


def check_here(settings: ToolsSettings) -> None:
    """Raises ValueError for functions that cannot be tools, LookupError for a program that is not here."""
    load(settings.functions)
    place = settings.mcp
    if place is None or not place.command:
        return
    if place.cwd is not None and not Path(place.cwd).is_dir():
        raise LookupError(f"mcp.cwd={place.cwd}: there is no such folder")
    program = place.command[0]
    here = Path(place.cwd or ".") / program if "/" in program else program
    if shutil.which(here, path=place.env.get("PATH")) is None:
        raise LookupError(f"mcp.command: there is no program {program}")
