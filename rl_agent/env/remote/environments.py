"""Makes instances of environments where the configuration has them live, and checks kinds and tasks there.

env_config.workers=0     in this process
env_config.workers=N     in so many worker processes
env_config.workers=null  in this process if the kind says that it is cooperative, else in a worker a core
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from rl_agent.config.sections.env import EnvConfig
from rl_agent.env.protocol import Environment
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.env.remote.kept_workers import KEPT
from rl_agent.env.remote.placement import WorkerLimits
from rl_agent.env.remote.server_check import check_servers, token_of
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.remote.worker_pool import WorkerPool, open_workers
from rl_agent.http.tls import trusting
from rl_agent.types import Task

if TYPE_CHECKING:
    from rl_agent.env.remote.server_pool import ServerPool

MOST_WORKERS_BY_DEFAULT = 16
WORKER_MAX_AGE_S = 4 * 3600.0
"""Then a worker is replaced, so that what an environment leaks for days does not add up."""
SERVERS_WAIT_S = 300.0
"""A rollout ends after so long with no server, and a resume goes on with it."""
SPOOL_BYTES = 2**30
"""Images that came from servers and are not copied yet: some thousand screenshots."""


class Environments:
    """The environments of a rollout. Open with `async with` to step instances; to check them, not."""

    def __init__(self, env_config: EnvConfig, own: Mapping[str, type[Environment]] | None = None) -> None:
        """`own` are classes of this process by their kinds: no worker and no server could import them."""
        self._env_config = env_config
        self._own = frozenset(own or {})
        self.classes = EnvironmentRegistry(env_config, own)
        """The classes as this process sees them."""
        self._places: WorkerPool | ServerPool | None = None
        self._closing = AsyncExitStack()

    def create(self, kind: str, crashes: int = 0) -> Environment:
        """Make a new instance. Raises ConfigError as `check` does."""
        if self._places is None or not self._lives_elsewhere(kind):
            return self.classes.create(kind)
        return self._places.create(kind, crashes)

    def check(self, kinds: Iterable[str], tasks: Sequence[Task] = ()) -> None:
        """Raises ConfigError for the first kind that cannot be used, or task that its kind cannot run.

        Where environments live on servers, those are asked: all must be there. MachineError if one is not.
        """
        if self._env_config.servers:
            check_servers(self._env_config, kinds, tasks)
            return
        self.classes.check(kinds)
        self.classes.check_tasks(tasks)

    def check_here(self, kinds: Iterable[str]) -> None:
        """Check the kinds that live on this machine; servers may come and go while a run goes on."""
        if not self._env_config.servers:
            self.classes.check(kinds)

    def start_workers(self, kinds: Iterable[str], most: int) -> int:
        """Start the workers, `most` at most, that a later `async with` takes; returns how many were started.

        Raises ConfigError as `check` does, and OSError.
        """
        config = self._env_config
        elsewhere = tuple(sorted(kind for kind in set(kinds) if self._lives_elsewhere(kind)))
        if config.servers or not elsewhere or not KEPT.is_open:
            return 0
        setup = replace(setup_of(config, config.server_size), begin_with=elsewhere)
        return KEPT.start(setup, min(worker_count(config), config.server_size, most))

    async def __aenter__(self) -> Self:
        config = self._env_config
        await self._closing.enter_async_context(self.classes)
        if config.servers:
            self._places = await self._closing.enter_async_context(_servers(config))
        elif worker_count(config):
            self._places = await self._closing.enter_async_context(_workers(config))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the workers, and close what instances here share."""
        await self._closing.aclose()

    def _lives_elsewhere(self, kind: str) -> bool:
        config = self._env_config
        if kind in self._own:
            return False
        if config.servers:
            return True
        if self.classes.asks(kind):  # its work is done by a program of its own
            return False
        return config.workers is not None or not self.classes.is_cooperative(kind)


def worker_count(config: EnvConfig) -> int:
    """Return how many worker processes there may be; none is started before an episode needs it."""
    if config.workers is not None:
        return config.workers
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS_BY_DEFAULT)


def limits_of(config: EnvConfig, workers: int) -> WorkerLimits:
    """Return when a worker is replaced."""
    return WorkerLimits(
        workers,
        config.worker_timeout_s,
        config.worker_max_episodes,
        WORKER_MAX_AGE_S,
        config.worker_max_rss_mib,
    )


def setup_of(config: EnvConfig, threads: int) -> WorkerSetup:
    """Return what a worker is told when it starts."""
    return WorkerSetup(dict(config.kinds), config.module_folders, threads, config.kwargs)


def _workers(config: EnvConfig) -> AbstractAsyncContextManager[WorkerPool]:
    limits = limits_of(config, worker_count(config))
    return open_workers(setup_of(config, config.server_size), limits, KEPT)


def _servers(config: EnvConfig) -> "AbstractAsyncContextManager[ServerPool]":
    from rl_agent.env.remote.server_link import LinkSettings  # aiohttp is a fifth of a plan's imports
    from rl_agent.env.remote.server_pool import open_servers

    tls = trusting(None) if any(url.startswith("https:") for url in config.servers) else None
    return open_servers(
        config.servers,
        LinkSettings(token_of(config), tls, config.server_timeout_s),
        wait_s=SERVERS_WAIT_S,
        spool_bytes=SPOOL_BYTES,
    )
