"""Settings of an environment of the kind `web`: `env_config.kwargs.web`."""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The settings that the environments of one process share."""

    chromium: str
    width: int
    height: int
    scale: float
    allowed_hosts: tuple[str, ...]
    sites: tuple[tuple[str, str], ...]
    """Names and folders of the sites served here, sorted."""
    sandbox: bool
    at_once: int
    """The number of pages that may load, act or be pictured at the same moment."""
    action_timeout_s: float
    load_timeout_s: float
    max_episodes: int
    max_age_s: float
    max_browser_mib: int
    max_page_mib: int


def settings_of(
    *,
    chromium: str | None = None,
    width: int = 1280,
    height: int = 768,
    scale: float = 1.0,
    allowed_hosts: tuple[str, ...] | list[str] = (),
    sites: Mapping[str, str] | None = None,
    sandbox: bool | None = None,
    at_once: int | None = None,
    action_timeout_s: float = 10.0,
    load_timeout_s: float = 30.0,
    max_episodes: int = 200,
    max_age_s: float = 1800.0,
    max_browser_mib: int = 8192,
    max_page_mib: int = 1024,
) -> WebSettings:
    """Return the settings with their defaults. Raises ValueError naming the key that is wrong."""
    for name, value, least, most in (
        ("width", width, 64, 4096),
        ("height", height, 64, 4096),
        ("scale", scale, 0.25, 4),
        ("action_timeout_s", action_timeout_s, 0.5, 600),
        ("load_timeout_s", load_timeout_s, 0.5, 600),
        ("max_episodes", max_episodes, 1, 1_000_000),
        ("max_age_s", max_age_s, 1, 10_000_000),
        ("max_browser_mib", max_browser_mib, 512, 1 << 20),
        ("max_page_mib", max_page_mib, 64, 1 << 20),
        ("at_once", at_once or 1, 1, 1024),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}; use a number from {least} to {most}")
    if isinstance(allowed_hosts, str):
        raise ValueError(f"allowed_hosts is {allowed_hosts!r}; write a list, [{allowed_hosts}]")
    check_hosts(allowed_hosts)
    return WebSettings(
        chromium=chromium or "",
        width=int(width),
        height=int(height),
        scale=float(scale),
        allowed_hosts=tuple(allowed_hosts),
        sites=tuple(sorted(_sites(sites).items())),
        sandbox=os.geteuid() != 0 if sandbox is None else bool(sandbox),
        at_once=at_once or 2 * (os.cpu_count() or 1),
        action_timeout_s=action_timeout_s,
        load_timeout_s=load_timeout_s,
        max_episodes=max_episodes,
        max_age_s=max_age_s,
        max_browser_mib=max_browser_mib,
        max_page_mib=max_page_mib,
    )


def _sites(named: Mapping[str, str] | None) -> dict[str, str]:
    """Return the folders of the sites: those of this project, and those that are named."""
    folders = {path.parent.name: str(path.parent) for path in sorted(OWN_SITES.glob("*/site.py"))}
    for name, folder in (named or {}).items():
        if not name.isidentifier() or name == "miniwob":
            raise ValueError(
                f"sites.{name}: use letters, digits and _ as the name of a site, but not miniwob"
            )
        if not (Path(folder) / "site.py").is_file():
            raise ValueError(f"sites.{name}: there is no {Path(folder) / 'site.py'}")
        folders[name] = str(Path(folder).resolve())
    return folders


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
