"""Settings of an environment of the kind `web`: `env_config.kwargs.web`."""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from rl_agent.env.web.hosts import check_hosts
from rl_agent.paths import PROJECT_ROOT

_CHROMIUMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
"""The first takes a quarter of the processor time of the others, which are whole browsers."""
OWN_SITES = PROJECT_ROOT / "data" / "sites"


def _sites(named: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the folders of the sites: those of this project, and those that are named."""
    folders = {path.parent.name: str(path.parent) for path in sorted(OWN_SITES.glob("*/site.py"))}
    for name, folder in dict(named or ()).items():
        if not name.isidentifier() or name == "miniwob":
            raise ValueError(
                f"sites.{name}: use letters, digits and _ as the name of a site, but not miniwob"
            )
        if not (Path(folder) / "site.py").is_file():
            raise ValueError(f"sites.{name}: there is no {Path(folder) / 'site.py'}")
        folders[name] = str(Path(folder).resolve())
    return tuple(sorted(folders.items()))


class WebSettings(BaseModel):
    """The settings that the environments of one process share."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    chromium: str | None = None
    width: Annotated[int, Field(ge=64, le=4096)] = 1280
    height: Annotated[int, Field(ge=64, le=4096)] = 768
    scale: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    allowed_hosts: Annotated[tuple[str, ...], AfterValidator(check_hosts)] = ()
    sites: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_sites)] = Field((), validate_default=True)
    """Names and folders of the sites served here, sorted."""
    sandbox: bool = Field(default_factory=lambda: os.geteuid() != 0)
    at_once: Annotated[int, Field(ge=1, le=1024)] = Field(default_factory=lambda: 2 * (os.cpu_count() or 1))
    """The number of pages that may load, act or be pictured at the same moment."""
    action_timeout_s: Annotated[float, Field(ge=0.5, le=600)] = 10.0
    load_timeout_s: Annotated[float, Field(ge=0.5, le=600)] = 30.0
    max_episodes: Annotated[int, Field(ge=1)] = 200
    max_age_s: Annotated[float, Field(ge=1)] = 1800.0
    max_browser_mib: Annotated[int, Field(ge=512)] = 8192
    max_page_mib: Annotated[int, Field(ge=64)] = 1024


def find_chromium(settings: WebSettings) -> str:
    """Return the path of the browser. Raises LookupError with one line that says what to install."""
    if importlib.util.find_spec("playwright") is None:
        raise LookupError("the package playwright is not installed; pip install rl-agent[web]")
    if settings.chromium:
        program = shutil.which(settings.chromium)
        if program is None:
            raise LookupError(f"env_config.kwargs.web.chromium: {settings.chromium} is not a program")
        return program
    for name in _CHROMIUMS:
        if program := shutil.which(name):
            return program
    raise LookupError(
        "there is no Chromium; apt-get install chromium-headless-shell, or chromium, or name one:"
        " +env_config.kwargs.web.chromium=/path"
    )
