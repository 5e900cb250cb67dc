"""Publishes the weights of a trainer to the engines of a pool.

    policy ─(all ranks gather, tensor by tensor)─► SnapshotStore ─► WeightServer ◄── engines fetch
                                                        └── POST /weights ─► manager ─► engines

The trainer waits for the manager to know a version, never for an engine to have it. It is announced again
from time to time, so that one that was restarted knows it, too. A trainer begins by taking the place of
those before it: one that is half alive elsewhere is refused from then on, and ends. After a crash the store
is found as it was, and what was published goes on being served. A number never stands for two contents.
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from rl_agent.cluster.member.services import driver_pid
from rl_agent.cluster.shared_fs.address import LOOPBACK
from rl_agent.config.sections.grpo import BatchSettings
from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import ConfigError, DeadlineError, HarnessError, RetryLater
from rl_agent.pool.client import Manager, TokenRefused
from rl_agent.system.files import remove
from rl_agent.trainer.grpo.background import BackgroundThread
from rl_agent.trainer.grpo.settings import StreamSettings
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.server.server import SentBytes, ServerSettings
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import Snapshot, SnapshotStore
from rl_agent.weights.store.tensor_sources import TensorSource
from rl_agent.weights.transports import open_transport

if TYPE_CHECKING:  # a program of its own publishes without the libraries of a model
    from rl_agent.trainer.grpo.model.parallel import Ranks
    from rl_agent.trainer.grpo.model.policy import PolicyModel

_log = logging.getLogger(__name__)
_RETRY_S = 0.5
TOKEN_ENV_VAR = "RL_AGENT_WEIGHTS_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the secret of the transfers; a random one where it is not set."""
ANNOUNCE_EVERY_S = 10.0
"""A manager that was restarted knows the newest version again after at most this; the report is small."""
REFUSED_S = 60.0
"""A manager that refuses for so long does not change its mind."""


@dataclass(frozen=True, slots=True)
class Content:
    """A weight version and the weights that it stands for."""

    weight_version: int
    digest: str | None
    """None: of a model's folder."""


class WeightFeed(ExitStack):
    """Publishes weights to a pool: a context manager that every rank calls alike; rank 0 does the work."""

    def __init__(
        self,
        settings: StreamSettings,
        ranks: "Ranks",
        *,
        dtype: str,
        batch: BatchSettings,
        base_digest: bytes | None = None,
        on_superseded: Callable[[], None] = lambda: None,
    ) -> None:
        """`base_digest`: publish the adapter alone, for the model with that digest; None: all weights.

        `on_superseded` is called on rank 0, by a thread, once a later trainer has this one's place.
        """
        super().__init__()
        self._base_digest = base_digest
        self._settings = settings
        self._ranks = ranks
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._batch = batch
        self._on_superseded = on_superseded
        self._host: PublishingHost | None = None

    def __enter__(self) -> Self:
        manager = self._settings.pool_manager
        if self._ranks.rank == 0 and manager is not None:
            with ExitStack() as opened:
                self._host = PublishingHost(
                    manager,
                    self._settings.weights,
                    self._settings.store,
                    opened,
                    max_staleness=self._batch.max_staleness,
                    finish_within_s=self._batch.finish_within_s,
                    on_superseded=self._on_superseded,
                )
                self.push(opened.pop_all())
        return self

    def publish(self, weight_version: int, policy: "PolicyModel", on_number: Callable[[int], None]) -> int:
        """Let the pool serve these weights; returns their number, which may be a later one than asked for.

        `on_number` is called once on rank 0, with that number, before anybody can see the weights.
        A number never stands for two contents: after a restart, what was published before is served on if it
        is the same, and otherwise the weights get the next number. While a trainer that was set back catches
        up with what it has published, nothing is. Raises ConfigError like `check_place`.
        """
        from rl_agent.trainer.grpo.publish.served import served_source

        self.check_place()
        host = self._host
        if not self._ranks.any_of_world(host is not None and host.newest <= weight_version):
            if self._ranks.rank == 0:
                on_number(weight_version)
            return weight_version
        source = served_source(policy, self._base_digest, self._dtype)
        if host is None:
            for _ in source.tensors():  # a collective: what this rank holds goes to rank 0
                pass
        else:
            weight_version = host.publish(weight_version, source, on_number)
        content = self._ranks.bytes_of_first(str(weight_version).encode())
        return weight_version if content is None else int(content)

    def has_published(self, weight_version: int) -> bool:
        """Return whether this version, or a later one, is in the store; every rank calls it."""
        return self._ranks.any_of_world(self._host is not None and self._host.newest >= weight_version)

    def wait_until_known(self, timeout_s: float, is_stopping: Callable[[], bool]) -> None:
        """Wait until the manager knows the newest version. Raises DeadlineError, ConfigError."""
        if self._host is not None:
            self._host.announcer.wait(timeout_s, is_stopping)

    def check_place(self) -> None:
        """Raise ConfigError if a later trainer has this one's place; every rank calls it, and all raise."""
        if self._ranks.any_of_world(self._host is not None and self._host.announcer.is_superseded):
            raise superseded(self._settings.manager or "")

    def sent(self) -> SentBytes:
        """Return what this rank has sent to engines so far."""
        return SentBytes() if self._host is None else self._host.server.sent

    def discard(self) -> None:
        """Remove the versions from the disk; done at the end of a run."""
        if self._host is not None:
            self._host.discard()


class PublishingHost:
    """The one process that publishes: the store, the server, the announcements."""

    def __init__(
        self,
        manager: Manager,
        weights: WeightsConfig,
        folder: Path,
        stack: ExitStack,
        *,
        max_staleness: int = 0,
        finish_within_s: float | None = None,
        on_superseded: Callable[[], None] = lambda: None,
    ) -> None:
        own, run = weights.host or (LOOPBACK,), driver_pid(os.environ)
        token = os.environ.get(TOKEN_ENV_VAR) or secrets.token_hex(16)
        store = SnapshotStore(folder, keep_versions=weights.keep_versions, owner_pid=run)
        self._store = stack.enter_context(store)
        self._publisher = Publisher(self._store, weights, serving_dtype=weights.serving_dtype)
        self._is_counted = weights.transport in ("tcp", "http")
        transport = open_transport(weights.transport, own[0])
        listening = ServerSettings.of(weights, own, weights.port)
        self.server = stack.enter_context(transport.server(Catalog(store), token.encode(), listening))
        self._sent_before = SentBytes()
        self.announcer = stack.enter_context(
            Announcer(
                manager,
                transfer_token=token,
                sources=self.server.sources,
                every_s=ANNOUNCE_EVERY_S,
                max_staleness=max_staleness,
                finish_within_s=finish_within_s,
                on_superseded=on_superseded,
            )
        )
        if self._store.newest is not None:
            self.announcer.announce(self._store.newest)

    @property
    def newest(self) -> int:
        return -1 if self._store.newest is None else self._store.newest.weight_version

    def publish(
        self,
        weight_version: int,
        source: TensorSource,
        on_number: Callable[[int], None] = lambda number: None,
    ) -> int:
        """Publish the tensors of a source; returns their number, as `WeightFeed.publish` does."""
        began, newest = time.monotonic(), self._store.newest
        published = None if newest is None else Content(newest.weight_version, newest.manifest.digest)
        number, unless = choose_number(weight_version, published, self.announcer.ask_pool())
        snapshot = self._publisher.publish(
            number, source, unless=unless, on_number=on_number, has_receivers=self._has_receivers()
        )
        if snapshot is newest:
            return snapshot.weight_version
        if number != weight_version:
            _log.warning("version %d was used for other weights: these are %d", weight_version, number)
        delta = snapshot.manifest.delta
        _log.info(
            "version %d published in %.2f s: %.1f MB%s",
            number,
            time.monotonic() - began,
            snapshot.manifest.full.size_bytes / 1e6,
            f", {delta.blob.size_bytes / 1e6:.1f} MB as a delta" if delta else "",
        )
        self.announcer.announce(snapshot)
        return number

    def _has_receivers(self) -> bool:
        """Return whether anybody has fetched over a connection since the last version.

        Engines of this host read the folder. What a transfer engine reads by itself is not counted.
        """
        before, self._sent_before = self._sent_before, self.server.sent
        return before != self._sent_before or not self._is_counted

    def discard(self) -> None:
        remove(self._store.root)


def choose_number(version: int, newest: Content | None, pool: Content | None) -> tuple[int, str | None]:
    """Choose the number of the weights of `version`, and the digest with which they need none.

    `newest`: what this trainer has published last; `pool`: what the pool serves, None if it does not say.
    """
    used = max((content.weight_version for content in (newest, pool) if content is not None), default=0)
    if newest is None or newest.weight_version != version:
        return max(version, used + 1), None
    is_pool_behind = pool is None or pool.weight_version < newest.weight_version
    return used + 1, newest.digest if is_pool_behind or pool == newest else None


def superseded(url: str) -> ConfigError:
    """Return the error of a trainer whose place at a pool is taken; it is not to be started again."""
    return ConfigError(
        f"{url}: a trainer that was started later has this one's place; what this one publishes is refused"
        " for good, so it ends"
    )


class Announcer(BackgroundThread):
    """Announces the newest version to the manager, in a thread: until it knows, and then now and again.

    It takes the place of earlier publishers before its first announcement. Once a later one has taken its own
    (`is_superseded`), nothing is announced any more.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        transfer_token: str,
        sources: Sequence[str],
        every_s: float,
        max_staleness: int,
        finish_within_s: float | None,
        on_superseded: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("announce-weights")
        self.is_superseded = False
        self._on_superseded = on_superseded
        self._placing = threading.Lock()
        self._place: int | None = None
        self._max_staleness = max_staleness
        self._same_for_all: dict[str, Any] = {"sources": sources, "transfer_token": transfer_token}
        if finish_within_s is not None:
            self._same_for_all["finish_within_s"] = finish_within_s
        self._manager = manager
        self._every_s = every_s
        self._wanted: dict[str, Any] | None = None
        self._known = -1
        self._problem = ""
        self._refusal: HarnessError | None = None
        """The manager has refused with these words since `_refused_at`."""
        self._refused_at = 0.0

    def announce(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._wanted = {
                "weight_version": snapshot.weight_version,
                "digest": snapshot.manifest.digest,
                "delta_digest": snapshot.manifest.delta_digest,
                "useful_from": max(0, snapshot.weight_version - self._max_staleness),
                **self._same_for_all,
            }
            self._changed.notify_all()

    def ask_pool(self) -> Content | None:
        """Take the place, and ask what the pool serves from then on; None if the manager does not answer."""
        try:
            self._placed()
            status = self._manager.ask("/status")
            return Content(int(status["weight_version"]), status["weights_digest"])
        except (ConfigError, RetryLater, KeyError, TypeError, ValueError, OverflowError):
            return None  # the announcement will say what is wrong

    def wait(self, timeout_s: float, is_stopping: Callable[[], bool]) -> None:
        """Wait until the manager knows what was announced last.

        Raises DeadlineError with its answer. What it has refused for REFUSED_S is RetryLater if another start
        of the trainer can mend it, else ConfigError, as it is at once if a later publisher has the place.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._wanted is not None and self._known < self._wanted["weight_version"]:
                if self.is_superseded:
                    raise superseded(self._manager.url)
                if is_stopping():
                    return
                if self._refusal is not None and time.monotonic() - self._refused_at >= REFUSED_S:
                    raise self._refusal
                if time.monotonic() >= deadline:
                    version = self._wanted["weight_version"]
                    raise DeadlineError(
                        f"{self._manager.url}: does not know weight version {version} after {timeout_s:g} s:"
                        f" {self._problem}"
                    )
                self._changed.wait(_RETRY_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                announcement = self._wanted
                is_known = announcement is None or self._known >= announcement["weight_version"]
            if announcement is not None:
                is_known = self._send(announcement)
            elif self._place is None:
                is_known = self.ask_pool() is not None
            if self.is_superseded:
                self._on_superseded()
                return
            with self._changed:
                if not self._is_stopping and announcement is self._wanted:
                    self._changed.wait(self._every_s if is_known else _RETRY_S)
                if self._is_stopping:
                    return

    def _placed(self) -> int:
        """Return this publisher's number, which it asks for once. Raises ConfigError, RetryLater."""
        with self._placing:
            if self._place is None:
                answer = self._manager.ask("/publishers", {})
                try:
                    self._place = int(answer["publisher"])
                except (KeyError, TypeError, ValueError, OverflowError) as error:  # a stranger at its address
                    raise RetryLater(
                        f"{self._manager.url}/publishers cannot be read: {type(error).__name__}"
                    ) from error
            return self._place

    def _send(self, announcement: dict[str, Any]) -> bool:
        problem = ""
        refusal: HarnessError | None = None
        try:
            answer = self._manager.ask("/weights", announcement | {"publisher": self._placed()})
            if answer.get("is_superseded"):
                with self._changed:
                    self.is_superseded = True
                    self._changed.notify_all()
                return False
            if not answer.get("is_accepted"):
                problem = f"it serves other weights as version {answer.get('weight_version')}"
                refusal = RetryLater(
                    f"{self._manager.url}: {problem}; the next start gives these another number"
                )
        except TokenRefused as error:
            problem = str(error)
            refusal = RetryLater(f"{problem}; the next start reads the token again")
        except (ConfigError, RetryLater) as error:
            problem = str(error)
            refusal = error if isinstance(error, ConfigError) else None
        if problem and problem != self._problem:
            _log.warning(
                "version %d cannot be announced to the pool: %s", announcement["weight_version"], problem
            )
        with self._changed:
            self._problem = problem
            if refusal is not None and self._refusal is None:
                self._refused_at = time.monotonic()
            self._refusal = refusal
            if not problem:
                self._known = max(self._known, announcement["weight_version"])
            self._changed.notify_all()
        return not problem
