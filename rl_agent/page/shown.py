"""The runs that a page shows, and what views ask of the page: a run by its address, and to be rendered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from rl_agent.page.background_lookup import BackgroundLookup
from rl_agent.page.index import EpisodeIndex
from rl_agent.page.pool_view import PoolHistoryReader
from rl_agent.page.run_folder import RunFolder
from rl_agent.page.verdict import Diagnosis, doctor


@dataclass(frozen=True, slots=True)
class ShownRun:
    """One log path, and all that is known about it."""

    folder: RunFolder
    diagnosis: BackgroundLookup[Diagnosis]
    index: EpisodeIndex
    pool: PoolHistoryReader


class PageRenderer(Protocol):
    """The page, as its views see it."""

    def run_of(self, request: web.Request) -> ShownRun:
        """Return the run that an address names. Raises web.HTTPNotFound."""

    async def rendered(
        self,
        request: web.Request,
        template: str,
        values: Callable[[], Mapping[str, Any]],
        run: ShownRun | None = None,
    ) -> web.Response:
        """Answer with a view."""


def named_runs(log_paths: tuple[Path, ...]) -> dict[str, ShownRun]:
    """Return the runs by names for addresses: those of their folders, counted where two are equal."""
    runs: dict[str, ShownRun] = {}
    for log_path in log_paths:
        name, count = log_path.name or "run", 1
        while name in runs:
            count += 1
            name = f"{log_path.name}-{count}"
        folder = RunFolder(name, log_path)
        runs[name] = ShownRun(folder, doctor(log_path), EpisodeIndex(folder.paths), PoolHistoryReader(folder))
    return runs
